// Package envdproto holds the definitions of the E2B envd RPC services, written from a description
// of the protocol as the E2B SDKs speak it. The generated messages are in its sub-packages process
// and filesystem, the generated Connect clients and handlers in processconnect and
// filesystemconnect below those.
//
// The package itself has no code; the behaviour is implemented in internal/guest/envd (guest) and
// internal/host/agentclient (host).
package envdproto

//go:generate ./generate.sh
