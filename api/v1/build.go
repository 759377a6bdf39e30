package v1

// BuildArchive names the entries of the archive that a build is asked for with: the first is BuildFile,
// a BuildRequest as JSON; the others, whose names begin with BuildContext, are the build context.
const (
	BuildFile    = "build.json"
	BuildContext = "context/"
)

// Bounds on a build context.
const (
	MaxBuildContent = 8 << 30  // bytes of its files
	MaxBuildEntries = 1 << 20  // files, directories and links
	MaxBuildNames   = 64 << 20 // bytes of the names of entries and of the targets of links
)

// Bounds on other parts of a BuildRequest.
const (
	MaxDockerfile   = 1 << 20 // bytes
	MaxBuildSecrets = 64
	MaxBuildSecret  = 500 << 10 // bytes of each
)

// BuildRequest asks for a snapshot to be built from a Dockerfile.
type BuildRequest struct {
	Tag        string            `json:"tag"`
	Replace    bool              `json:"replace,omitempty"` // a snapshot with the tag gives way
	Dockerfile string            `json:"dockerfile"`        // its text
	Name       string            `json:"name,omitempty"`    // of the Dockerfile, for errors; empty: Dockerfile
	Target     string            `json:"target,omitempty"`  // a stage; empty: the last
	Args       map[string]string `json:"args,omitempty"`    // values of ARG instructions
	NoCache    bool              `json:"no_cache,omitempty"`
	VCPUs      uint32            `json:"vcpus,omitempty"`      // of a VM made from an image; 0: 1
	MemoryMiB  uint64            `json:"memory_mib,omitempty"` // likewise; 0: 1024
	DiskMiB    int               `json:"disk_mib,omitempty"`   // likewise; 0: 8192
	Secrets    map[string][]byte `json:"secrets,omitempty"`    // of RUN --mount=type=secret, by id
}

// BuildEvent is a line of a build's progress; one field is set. The first event has the plan, the last
// the result or an error.
type BuildEvent struct {
	Plan      *BuildPlan   `json:"plan,omitempty"`
	Step      *BuildStep   `json:"step,omitempty"`
	Output    *BuildOutput `json:"output,omitempty"`
	Result    *BuildResult `json:"result,omitempty"`
	Keepalive bool         `json:"keepalive,omitempty"`

	Error  string `json:"error,omitempty"`
	Code   string `json:"code,omitempty"`
	Status int    `json:"status,omitempty"`
}

// BuildPlan says what a build will do.
type BuildPlan struct {
	Steps []string    `json:"steps"` // names, by number from 0
	Notes []BuildNote `json:"notes"` // what of the Dockerfile has no effect
}

// BuildNote is a remark about a line of a Dockerfile.
type BuildNote struct {
	Line int    `json:"line,omitempty"` // from 1; 0: the whole
	Text string `json:"text"`
}

// BuildStep says how far a step is. State is "started", "cached", "done" or "failed".
type BuildStep struct {
	Number int     `json:"number"` // from 0
	State  string  `json:"state"`
	MS     float64 `json:"ms,omitempty"` // that it took, in milliseconds
}

// BuildOutput is a line that a command of a step wrote.
type BuildOutput struct {
	Number int    `json:"number"` // of the step
	Line   string `json:"line"`
}

// BuildResult is what a build made.
type BuildResult struct {
	Tag    string  `json:"tag"`
	Cached int     `json:"cached"` // steps whose snapshots were there
	Run    int     `json:"run"`    // steps that were carried out
	MS     float64 `json:"ms"`     // in milliseconds
}
