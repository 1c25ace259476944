"""What can be done with chains: a module for each verb."""
