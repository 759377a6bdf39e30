package mcp

// Helpful returns a map from the code of an error to the tool that helps after this error.
func Helpful() map[string]string { return helpful }
