"""At home in frameworks: each subpackage needs the framework it is named after, and nothing imports them by itself."""
