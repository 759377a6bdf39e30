package mcp

// Helpful returns the tools that help after an error, by the error's code.
func Helpful() map[string]string { return helpful }
