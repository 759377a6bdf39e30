package v1

// UnpackParams are the query parameters of a request that unpacks an archive.
const (
	UnpackTag       = "tag"       // tag of the new snapshot; absent: the tag of the packed snapshot
	UnpackTrust     = "trust"     // require, warn or off; absent: the daemon's policy for archives
	UnpackSignature = "signature" // bundle for the digest of the artifact's manifest

	// MaxUnpackSignature bounds the bundle in such a request, in bytes. The bundle is a part of the
	// URL.
	MaxUnpackSignature = 8 << 10
)

// PushRequest asks to write a snapshot to a registry.
type PushRequest struct {
	Reference    string                  `json:"reference"` // REGISTRY/NAME:TAG
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"`
	// If RecordHot is true, the daemon runs the snapshot twice, and also pushes a list of the
	// frames that its first forks need.
	RecordHot bool `json:"record_hot,omitempty"`
}

// PullRequest asks to fetch a snapshot from a registry. RegistryAuth has credentials only for the
// registries of Reference and Mirrors.
type PullRequest struct {
	Reference    string                  `json:"reference"`       // REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST
	Tag          string                  `json:"tag,omitempty"`   // new snapshot's tag; empty: the pushed snapshot's tag
	Trust        string                  `json:"trust,omitempty"` // require, warn or off; empty: the daemon's policy
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"`
	// Lazy ends the request as soon as the snapshot can be forked. The rest arrives later.
	Lazy bool `json:"lazy,omitempty"`
	// If Reuse is true, and an earlier pull made a snapshot with the tag from the same artifact,
	// this pull returns that snapshot.
	Reuse bool `json:"reuse,omitempty"`
	// Mirrors are repositories, REGISTRY/NAME, that have the same files. If the registry of Reference
	// fails, the files come from the mirrors, in the given order. There are at most 4.
	Mirrors []string `json:"mirrors,omitempty"`
}

// CopyRequest asks to copy a snapshot from one repository to another. RegistryAuth has credentials only for the
// registries of From and To.
type CopyRequest struct {
	From         string                  `json:"from"`            // REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST
	To           string                  `json:"to"`              // REGISTRY/NAME:TAG
	Trust        string                  `json:"trust,omitempty"` // require, warn or off; empty: the daemon's policy
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"`
}

// FindRequest asks for the description of a snapshot in a registry.
type FindRequest struct {
	Reference    string                  `json:"reference"` // REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"`
}

// RemoteSnapshot describes a snapshot in a registry, as the snapshot's author describes it.
type RemoteSnapshot struct {
	Reference    string `json:"reference"` // reference in the registry, with the digest
	Digest       string `json:"digest"`    // digest of the artifact's manifest
	Tag          string `json:"tag"`       // tag of the pushed snapshot
	CreatedAt    int64  `json:"created_at_unix"`
	MemSizeMiB   uint64 `json:"mem_size_mib"`
	VCPUs        uint32 `json:"vcpus"`
	CPUTemplate  string `json:"cpu_template"`
	Kernel       string `json:"kernel"`
	Bytes        int64  `json:"bytes"`                   // sum of the compressed files
	LackingBytes int64  `json:"lacking_bytes"`           // compressed bytes that a pull would fetch now
	Problem      string `json:"problem,omitempty"`       // why this host cannot run the snapshot
	SignedBy     string `json:"signed_by,omitempty"`     // name of the trusted key that has signed the snapshot
	TrustProblem string `json:"trust_problem,omitempty"` // why no trusted key vouches for the snapshot
}

// SignRequest adds a signature to a snapshot in a registry.
type SignRequest struct {
	Reference    string                  `json:"reference"` // REGISTRY/NAME@DIGEST or REGISTRY/NAME:TAG
	Bundle       string                  `json:"bundle"`    // sigstore bundle in JSON, for the artifact's digest
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"`
}

// SignatureRequest asks for the key that has signed a snapshot in a registry.
type SignatureRequest struct {
	Reference    string                  `json:"reference"`     // REGISTRY/NAME@DIGEST or REGISTRY/NAME:TAG
	Key          string                  `json:"key,omitempty"` // public key in PEM; empty: any key that the daemon trusts
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"`
}

// Signature is a signature of a snapshot in a registry.
type Signature struct {
	Reference string `json:"reference"`            // reference in the registry, with the digest
	Digest    string `json:"digest"`               // digest of the artifact's manifest
	SignedBy  string `json:"signed_by,omitempty"`  // name of the daemon's trusted key
	KeyDigest string `json:"key_digest,omitempty"` // SHA-256 of the public key
}

// HubEvent is a progress line for a snapshot that moves into or out of the store. One field is set.
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
	Done  int64  `json:"done,omitempty"` // for pulls and pushes: bytes that have crossed the network
}

// HubResult is the result of a movement: an unpack, a push, a pull or a copy.
type HubResult struct {
	Digest    string    `json:"digest"`                // digest of the artifact's manifest
	Bytes     int64     `json:"bytes"`                 // sum of the compressed files
	Moved     int64     `json:"moved_bytes,omitempty"` // bytes that were sent to the registry or fetched from it
	Reference string    `json:"reference,omitempty"`   // reference in the registry, with the digest
	Snapshot  *Snapshot `json:"snapshot,omitempty"`
	// For a copy: number of the source's signatures that the copy also has.
	Signatures int `json:"signatures,omitempty"`
	// For a push with RecordHot: number of frames that the first forks need.
	HotFrames int    `json:"hot_frames,omitempty"`
	SignedBy  string `json:"signed_by,omitempty"` // name of the trusted key that has signed the snapshot
	// Why no trusted key vouches for the snapshot, if the policy is warn.
	TrustProblem string  `json:"trust_problem,omitempty"`
	MS           float64 `json:"ms"`
}
