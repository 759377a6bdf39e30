// Package plan describes a build as a graph of steps. Each step continues the snapshot of an
// earlier step. The package also computes a key for every step. A later build uses the key to find
// the step's snapshot again. Two steps have the same key only if they do the same thing to the same
// content.
//
// The package only holds values. Packages dockerfile and recipeplan read Dockerfiles and recipes,
// and package daemon/build executes plans.
package plan

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Plan is a graph of steps. Each step comes after the steps that it needs.
type Plan struct {
	Steps  []Step `json:"steps"`
	Result int    `json:"result"`          // index of the step whose snapshot is the result
	Notes  []Note `json:"notes,omitempty"` // instructions that a reader accepted and ignored

	// Network is the network of the guests while steps run, except for Children steps. If it is
	// nil, these guests have the default network of sandboxes. Network is in the keys of the steps
	// that run programs.
	Network *snapshot.Network `json:"network,omitempty"`
}

// Note is a remark about the source of a plan.
type Note struct {
	Line int    `json:"line,omitempty"` // line of the source, from 1; 0: the whole source
	Text string `json:"text"`
}

// Step is one step. Exactly one of the pointers is set.
type Step struct {
	Name string `json:"name"`           // shown to people, such as "[build 2/4] RUN make"; not part of the key
	Line int    `json:"line,omitempty"` // line of the source, from 1; not part of the key
	From int    `json:"from"`           // index of the step whose snapshot this step continues; -1 for a Base

	Force bool `json:"-"` // whether to run the step even if its snapshot exists

	Base     *Base     `json:"base,omitempty"`
	Run      *Run      `json:"run,omitempty"`
	Copy     *Copy     `json:"copy,omitempty"`
	Dir      *Dir      `json:"dir,omitempty"`
	Warm     *Warm     `json:"warm,omitempty"`
	Defaults *Defaults `json:"defaults,omitempty"`
	Children *Children `json:"children,omitempty"`
}

// Base is the start of a stage: an image of a registry, files to boot from, or a snapshot.
type Base struct {
	Image    string `json:"image,omitempty"`
	Boot     *Boot  `json:"boot,omitempty"`
	Snapshot string `json:"snapshot,omitempty"` // tag of a snapshot
	// Digest is the digest of the image's manifest or of the boot files. For a snapshot, it is the
	// snapshot's id.
	Digest string `json:"digest"`
	Memory bool   `json:"memory,omitempty"` // whether steps continue the base's processes and memory; false for an image

	// vCPUs of the VM; 0: the executor's default, or the number in the snapshot.
	VCPUs uint32 `json:"vcpus,omitempty"`
	// Memory of the VM; 0: the executor's default, or the memory of the snapshot.
	MemoryMiB uint64 `json:"memory_mib,omitempty"`
	DiskMiB   int    `json:"disk_mib,omitempty"` // disk of the VM, for images; 0: the executor's default

	VolumeSlots uint32 `json:"volume_slots,omitempty"` // number of volumes that a child can mount, for boot files
}

// Boot names the files that a machine boots from. Their paths are absolute and on the daemon's host.
type Boot struct {
	Kernel string `json:"kernel"`
	Initrd string `json:"initrd,omitempty"` // empty: the executor makes one
	Rootfs string `json:"rootfs"`           // raw root file system, never written

	Env map[string]string `json:"env,omitempty"` // environment of all processes
}

// Boots reports whether a machine boots for the base. A machine boots from an image, from files or,
// if the base sets a size for the machine, from the snapshot's disk.
func (b *Base) Boots() bool {
	return b.Image != "" || b.Boot != nil || b.VCPUs != 0 || b.MemoryMiB != 0
}

// Process is a command of a step with its settings.
type Process struct {
	Args []string          `json:"args"`           // command and its arguments
	Env  map[string]string `json:"env,omitempty"`  // added to the environment of the base
	User string            `json:"user,omitempty"` // an account or its number; empty: root
	Dir  string            `json:"dir,omitempty"`  // absolute; empty: /
}

// Run is a command that must succeed. Processes that it leaves running are killed.
type Run struct {
	Process
	Script  *Inline `json:"script,omitempty"` // a file whose path is in Args
	Mounts  []Mount `json:"mounts,omitempty"`
	Network string  `json:"network,omitempty"` // "none"; if empty, the network of the build
}

// Inline is a file whose content is in the source of the plan.
type Inline struct {
	Path string `json:"path"`
	Data string `json:"data"`
}

// Kinds of mounts.
const (
	MountBind   = "bind"
	MountCache  = "cache"
	MountTmpfs  = "tmpfs"
	MountSecret = "secret"
)

// Mount is a directory or file that a command can use. It is not part of the snapshot.
type Mount struct {
	Kind     string  `json:"kind"`
	Target   string  `json:"target"`             // absolute path; may be empty for a secret that is only a variable
	Source   *Source `json:"source,omitempty"`   // for a bind; the command changes only a copy
	ReadOnly bool    `json:"readonly,omitempty"` // for a bind: true if the command cannot write to it
	ID       string  `json:"id,omitempty"`       // id of the cache or the secret
	SizeMiB  int64   `json:"size_mib,omitempty"` // for a tmpfs: its maximum size; 0: the kernel's default
	Mode     string  `json:"mode,omitempty"`     // mode of the cache's directory or the secret's file, in octal
	UID      uint64  `json:"uid,omitempty"`      // owner of the cache's directory or the secret's file
	GID      uint64  `json:"gid,omitempty"`      // group of the cache's directory or the secret's file
	Env      string  `json:"env,omitempty"`      // for a secret: the variable that is set to its value; empty: none
	Required bool    `json:"required,omitempty"` // for a secret: whether the step fails without it
}

// Copy copies files into the file system.
type Copy struct {
	Sources []Source `json:"sources"`
	Target  string   `json:"target"`          // absolute path; with a "/" at the end, it is a directory
	Owner   string   `json:"owner,omitempty"` // USER, USER:GROUP or numbers; empty: root, or the owner in the source
	// Argument of chmod for all files and directories; empty: as in the source.
	Mode   string `json:"mode,omitempty"`
	Unpack bool   `json:"unpack,omitempty"`
}

// Source says where files come from: the build context, the snapshot of another step, the network,
// or the plan itself.
type Source struct {
	// Files of the build context. The slice is a part of the context's list, so it must not be
	// changed.
	Files   []File   `json:"files,omitempty"`
	Strip   int      `json:"-"`                 // number of leading bytes of each path that Name omits
	Dir     bool     `json:"dir,omitempty"`     // whether Files are the content of a directory, without the directory
	Step    *int     `json:"step,omitempty"`    // index of the step whose snapshot contains the files
	Path    string   `json:"path,omitempty"`    // absolute path in that snapshot; may be a shell pattern
	Into    string   `json:"into,omitempty"`    // directory below the target in which to put the files (COPY --parents)
	Exclude []string `json:"exclude,omitempty"` // patterns of files in Step to skip, in the syntax of .dockerignore
	Inline  *Inline  `json:"inline,omitempty"`  // a file whose name is Inline.Path
	Remote  *Remote  `json:"remote,omitempty"`  // a file on a web server
	Git     *Git     `json:"git,omitempty"`     // files of a commit
}

// Remote is a file on a web server.
type Remote struct {
	URL  string `json:"url"`
	Name string `json:"name"` // name below the target
	Hash string `json:"hash"` // "sha256", "sha384" or "sha512"
	Sum  string `json:"sum"`  // digest of the content, in hex
}

// Git is a commit of a repository.
type Git struct {
	URL    string `json:"url"`
	Ref    string `json:"ref"`            // branch, tag or commit to fetch
	Commit string `json:"commit"`         // expected commit, in hex
	Dir    string `json:"dir,omitempty"`  // directory of the repository to copy; empty: the whole repository
	Keep   bool   `json:"keep,omitempty"` // whether to copy the directory .git too
}

// Name returns the name that a file of the source has below the target.
func (s *Source) Name(f *File) string { return f.Path[s.Strip:] }

// File is an entry of the build context.
type File struct {
	Path   string `json:"path"`
	Kind   string `json:"kind"`             // "file", "dir" or "link"
	Mode   uint32 `json:"mode"`             // permission bits
	Size   int64  `json:"size,omitempty"`   // in bytes
	Digest string `json:"digest,omitempty"` // SHA-256 of a file's content, in hex
	Link   string `json:"link,omitempty"`   // target of a link

	ModTime int64 `json:"-"` // seconds since 1970; not part of the key
}

// Kinds of files.
const (
	KindFile = "file"
	KindDir  = "dir"
	KindLink = "link"
)

// Dir creates a directory and its missing parents.
type Dir struct {
	Path  string `json:"path"`
	Owner string `json:"owner,omitempty"` // owner of the created directories, as in Copy; empty: root
}

// Warm runs a command, or code in the warm Python interpreter. The processes and the memory of the
// command or the code stay in the snapshot. Without a probe the command must succeed. With a probe
// the command keeps running, and the step is done when the probe succeeds.
type Warm struct {
	Process
	Probe  []string `json:"probe,omitempty"`  // command and arguments, run like Args
	Python string   `json:"python,omitempty"` // code, instead of Args

	// TimeoutSecs bounds the time of the command, the code or the probe; 0: the executor's bound.
	// It is not part of the key.
	TimeoutSecs float64 `json:"timeout_secs,omitempty"`
}

// Children holds settings of sandboxes that are forked from the result. While the step runs, these
// settings also apply to its guest. The plan's network does not apply to this guest.
type Children struct {
	Network *snapshot.Network `json:"network,omitempty"` // nil: the default of sandboxes
	Limits  vm.Limits         `json:"limits,omitzero"`
	Strict  bool              `json:"strict,omitempty"` // whether to refuse forks that repeat random numbers
	Hooks   snapshot.Hooks    `json:"hooks,omitzero"`
}

// Defaults holds the settings of processes in sandboxes that are forked from the result.
type Defaults struct {
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty"`
	Dir  string            `json:"dir,omitempty"`

	KeepUser bool `json:"keep_user,omitempty"` // whether to ignore User and keep the base's user
}

// Needs returns the indexes of the steps whose snapshots this step needs, in addition to From.
func (s *Step) Needs() []int {
	var needs []int
	add := func(src *Source) {
		if src != nil && src.Step != nil {
			needs = append(needs, *src.Step)
		}
	}
	if s.Copy != nil {
		for i := range s.Copy.Sources {
			add(&s.Copy.Sources[i])
		}
	}
	if s.Run != nil {
		for i := range s.Run.Mounts {
			add(s.Run.Mounts[i].Source)
		}
	}
	return needs
}

// Memory returns for every step whether its snapshot contains the memory and processes at the end
// of the step. Any other snapshot has only a disk, and the step that continues it boots a VM.
//
//   - A warm step, and the steps that continue it, have memory. The step that saves the settings
//     also has memory, so that a fork of the result need not boot.
//   - The steps on a base have memory if the base has memory.
//   - The snapshot of a command with a secret never has memory, because the memory would contain
//     the secret.
func (p *Plan) Memory() []bool {
	memory := make([]bool, len(p.Steps))
	for i := range p.Steps {
		switch s := &p.Steps[i]; {
		case s.Base != nil:
			memory[i] = s.Base.Memory
		case s.Warm != nil, s.Defaults != nil:
			memory[i] = true
		default:
			memory[i] = memory[s.From] && !s.HasSecret()
		}
	}
	return memory
}

// HasSecret reports whether the step runs a command with a secret.
func (s *Step) HasSecret() bool {
	return s.Run != nil && slices.ContainsFunc(s.Run.Mounts, func(m Mount) bool { return m.Kind == MountSecret })
}

// MaxSteps is the maximum number of steps in a plan. It is limited because every step adds a layer
// to the snapshots of later steps.
const MaxSteps = 500

// Check returns an error if the plan is invalid.
func (p *Plan) Check() error {
	if len(p.Steps) == 0 {
		return errors.New("the plan has no steps")
	}
	if len(p.Steps) > MaxSteps {
		return fmt.Errorf("the plan has %d steps: want at most %d", len(p.Steps), MaxSteps)
	}
	if p.Result < 0 || p.Result >= len(p.Steps) {
		return fmt.Errorf("result %d: the plan has %d steps", p.Result, len(p.Steps))
	}
	for i := range p.Steps {
		if err := p.Steps[i].check(i); err != nil {
			return fmt.Errorf("step %d (%s): %w", i, p.Steps[i].Name, err)
		}
	}
	return nil
}

// isOne reports whether exactly one kind of base is set.
func (b *Base) isOne() bool {
	kinds := 0
	for _, set := range []bool{b.Image != "", b.Boot != nil, b.Snapshot != ""} {
		if set {
			kinds++
		}
	}
	return kinds == 1
}

func (s *Step) check(i int) error {
	kinds := 0
	for _, set := range []bool{s.Base != nil, s.Run != nil, s.Copy != nil, s.Dir != nil, s.Warm != nil,
		s.Defaults != nil, s.Children != nil} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return fmt.Errorf("it has %d kinds: want one", kinds)
	case s.Base != nil && s.From != -1:
		return errors.New("a base continues no step")
	case s.Base == nil && (s.From < 0 || s.From >= i):
		return fmt.Errorf("it continues step %d, which does not stand before it", s.From)
	case s.Base != nil && !s.Base.isOne():
		return errors.New("want an image, files to boot from, or a snapshot")
	case s.Base != nil && s.Base.Memory && s.Base.Image != "":
		return errors.New("an image has no memory to keep")
	case s.Base != nil && s.Base.Digest == "":
		return errors.New("the base has no digest")
	case s.Run != nil && len(s.Run.Args) == 0, s.Warm != nil && len(s.Warm.Args) == 0 && s.Warm.Python == "":
		return errors.New("the command is empty")
	case s.Warm != nil && s.Warm.Python != "" && len(s.Warm.Args)+len(s.Warm.Probe) > 0:
		return errors.New("want either a command or Python code")
	case s.Copy != nil && !path.IsAbs(s.Copy.Target):
		return fmt.Errorf("target %q: want an absolute path", s.Copy.Target)
	case s.Dir != nil && !path.IsAbs(s.Dir.Path):
		return fmt.Errorf("directory %q: want an absolute path", s.Dir.Path)
	}
	for _, n := range s.Needs() {
		if n < 0 || n >= i {
			return fmt.Errorf("it needs step %d, which does not stand before it", n)
		}
	}
	return nil
}
