"""The methods of `Queuert`, by what they are for."""
