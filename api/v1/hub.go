package v1

// UnpackParams are the query parameters of a request that unpacks an archive.
const (
	UnpackTag   = "tag"   // tag of the new snapshot; absent: the tag of the packed snapshot
	UnpackTrust = "trust" // accept a snapshot without a verified signature
)

// PushRequest asks for a snapshot to be written to a registry.
type PushRequest struct {
	Reference    string                  `json:"reference"` // REGISTRY/NAME:TAG
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"`
}

// PullRequest asks for a snapshot of a registry. RegistryAuth has credentials for the reference's registry
// only.
type PullRequest struct {
	Reference    string                  `json:"reference"`       // REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST
	Tag          string                  `json:"tag,omitempty"`   // of the new snapshot; empty: that of the pushed one
	Trust        bool                    `json:"trust,omitempty"` // accept a snapshot without a verified signature
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"`
}

// FindRequest asks for the description of a snapshot in a registry.
type FindRequest struct {
	Reference    string                  `json:"reference"` // REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"`
}

// RemoteSnapshot describes a snapshot in a registry, as its author does.
type RemoteSnapshot struct {
	Reference    string `json:"reference"` // in the registry, with the digest
	Digest       string `json:"digest"`    // of the artifact's manifest
	Tag          string `json:"tag"`       // of the pushed snapshot
	CreatedAt    int64  `json:"created_at_unix"`
	MemSizeMiB   uint64 `json:"mem_size_mib"`
	VCPUs        uint32 `json:"vcpus"`
	CPUTemplate  string `json:"cpu_template"`
	Kernel       string `json:"kernel"`
	Bytes        int64  `json:"bytes"`             // sum of the compressed files
	LackingBytes int64  `json:"lacking_bytes"`     // compressed bytes that a pull would fetch now
	Problem      string `json:"problem,omitempty"` // why this host cannot run it
}

// HubEvent is a line of the progress of a snapshot that moves into the store or out of it. One field is set.
// The last event has the result or an error.
type HubEvent struct {
	File      *HubFile   `json:"file,omitempty"`
	Result    *HubResult `json:"result,omitempty"`
	Keepalive bool       `json:"keepalive,omitempty"`

	Error  string `json:"error,omitempty"`
	Code   string `json:"code,omitempty"`
	Status int    `json:"status,omitempty"`
}

// HubFile reports the progress of a file of a snapshot.
type HubFile struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Bytes int64  `json:"bytes"`          // size of the compressed file
	Done  int64  `json:"done,omitempty"` // with pulling and pushing: bytes that have crossed the network
}

// HubResult is the result of a movement.
type HubResult struct {
	Digest    string    `json:"digest"`                // of the artifact's manifest
	Bytes     int64     `json:"bytes"`                 // sum of the compressed files
	Moved     int64     `json:"moved_bytes,omitempty"` // bytes that were sent to the registry or fetched from it
	Reference string    `json:"reference,omitempty"`   // in the registry, with the digest
	Snapshot  *Snapshot `json:"snapshot,omitempty"`
	MS        float64   `json:"ms"`
}
