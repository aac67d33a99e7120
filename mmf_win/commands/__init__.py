"""Commands, one module each: parse the arguments, call one function, print its result."""
