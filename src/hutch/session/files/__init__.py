"""Files of an execution: inputs that the guest can read, and outputs that it returns."""
