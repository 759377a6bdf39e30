package v1

// Names in the archive that is the body of a build request. The first entry is BuildFile, a
// BuildRequest as JSON. All other entries are the build context. Their names begin with
// BuildContext.
const (
	BuildFile    = "build.json"
	BuildContext = "context/"
)

// Bounds on a build context.
const (
	MaxBuildContent = 8 << 30  // bytes of the files of a build
	MaxBuildEntries = 1 << 20  // files, directories and links
	MaxBuildNames   = 64 << 20 // bytes of the names of entries and of the targets of links
)

// Bounds on other parts of a BuildRequest.
const (
	MaxDockerfile   = 1 << 20 // bytes
	MaxBuildSecrets = 64
	MaxBuildSecret  = 500 << 10 // bytes of each secret

	MaxBuildRegistries = 64       // registries for which credentials are given
	MaxRegistryAuth    = 64 << 10 // bytes of each text in the credentials
)

// BuildRequest asks the daemon to build a snapshot from a Dockerfile or a recipe.
type BuildRequest struct {
	Tag        string            `json:"tag"`
	Replace    bool              `json:"replace,omitempty"`    // replace a snapshot that has the tag
	Dockerfile string            `json:"dockerfile,omitempty"` // text of the Dockerfile
	Name       string            `json:"name,omitempty"`       // file name, for error messages; empty: Dockerfile
	Target     string            `json:"target,omitempty"`     // stage to build; empty: the last stage
	Args       map[string]string `json:"args,omitempty"`       // values of ARG instructions
	NoCache    bool              `json:"no_cache,omitempty"`
	Encrypt    bool              `json:"encrypt,omitempty"`    // encrypt the result, but not the snapshots of the steps
	VCPUs      uint32            `json:"vcpus,omitempty"`      // vCPUs of a VM that boots from an image; 0 means 1
	MemoryMiB  uint64            `json:"memory_mib,omitempty"` // memory of such a VM; 0 means 1024
	DiskMiB    int               `json:"disk_mib,omitempty"`   // disk of such a VM; 0 means 8192
	Secrets    map[string][]byte `json:"secrets,omitempty"`    // secrets for RUN --mount=type=secret, by id

	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"` // credentials for pulls, by registry host

	// Recipe is the text of a recipe. If it is set, this recipe is built instead of a Dockerfile.
	// The build context is the directory of the recipe.
	Recipe           string     `json:"recipe,omitempty"`
	Boot             *BuildBoot `json:"boot,omitempty"`               // required with Recipe
	Network          *Network   `json:"network,omitempty"`            // only with Recipe; nil: as the recipe says
	Limits           *Limits    `json:"limits,omitempty"`             // only with Recipe; nil: as the recipe says
	ReadyTimeoutSecs float64    `json:"ready_timeout_secs,omitempty"` // with Recipe: time limit of the boot; 0 means 300
}

// BuildBoot names the files from which a recipe's VM boots: a root file system made from the
// recipe's base and packages, and a kernel. Paths are paths on the daemon's host.
type BuildBoot struct {
	Kernel string            `json:"kernel"`
	Initrd string            `json:"initrd,omitempty"` // empty: the daemon makes one
	Rootfs string            `json:"rootfs"`
	Env    map[string]string `json:"env,omitempty"` // environment variables of the base
}

// RegistryAuth holds credentials for a registry: a username with a password, or one token.
type RegistryAuth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identity_token,omitempty"` // exchanged for access tokens
	RegistryToken string `json:"registry_token,omitempty"` // sent to the registry unchanged
}

// BuildEvent is a line of a build's progress. One field is set. The first event contains the plan,
// and the last event contains the result or an error.
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

// BuildPlan describes the steps of a build.
type BuildPlan struct {
	Steps []string    `json:"steps"` // names of the steps; the index is the step's number
	Notes []BuildNote `json:"notes"` // parts of the Dockerfile that have no effect
}

// BuildNote is a remark about a line of a Dockerfile.
type BuildNote struct {
	Line int    `json:"line,omitempty"` // line number, from 1; 0: the whole file
	Text string `json:"text"`
}

// BuildStep reports the state of a step: "started", "cached", "done" or "failed".
type BuildStep struct {
	Number int     `json:"number"` // number of the step, from 0
	State  string  `json:"state"`
	MS     float64 `json:"ms,omitempty"` // duration, in milliseconds
}

// BuildOutput is an output line of a step's command.
type BuildOutput struct {
	Number int    `json:"number"` // number of the step
	Line   string `json:"line"`
}

// BuildResult is the result of a build.
type BuildResult struct {
	Tag    string  `json:"tag"`
	Cached int     `json:"cached"` // steps whose snapshot already existed
	Run    int     `json:"run"`    // steps that were executed
	MS     float64 `json:"ms"`     // duration of the build in milliseconds
}
