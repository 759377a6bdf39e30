package mcp

// Helpful returns which tools help against which error, for tests.
func Helpful() map[string]string { return helpful }
