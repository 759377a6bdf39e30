package v1

// UnpackParams are the query parameters of a request that unpacks an archive.
const (
	UnpackTag   = "tag"   // tag of the new snapshot; absent: that of the packed snapshot
	UnpackTrust = "trust" // accept a snapshot without a verified signature
)

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

// HubFile reports what has happened to a file of a snapshot.
type HubFile struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Bytes int64  `json:"bytes"` // size of the compressed file
}

// HubResult is the result of a movement.
type HubResult struct {
	Digest   string    `json:"digest"` // of the artifact's manifest
	Bytes    int64     `json:"bytes"`  // sum of the compressed files
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	MS       float64   `json:"ms"`
}
