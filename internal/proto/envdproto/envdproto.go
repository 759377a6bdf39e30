// Package envdproto has the definitions of the RPC services of envd, E2B's agent. The definitions
// were written from a description of the protocol of the E2B SDKs. The packages process and
// filesystem have the generated messages. The packages processconnect and filesystemconnect below
// them have the generated Connect clients and handlers.
//
// The package itself has no code. The services are implemented in internal/guest/envd, for the
// guest, and used by internal/host/agentclient, on the host.
package envdproto

//go:generate ./generate.sh
