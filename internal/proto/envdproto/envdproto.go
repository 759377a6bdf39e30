// Package envdproto holds the definitions of the E2B envd RPC services, written from a description
// of the protocol that the E2B SDKs use. Its sub-packages process and filesystem hold the generated
// messages; processconnect and filesystemconnect below them hold the generated Connect clients and
// handlers.
//
// The package itself has no code. The behaviour is implemented in internal/guest/envd (guest) and
// internal/host/agentclient (host).
package envdproto

//go:generate ./generate.sh
