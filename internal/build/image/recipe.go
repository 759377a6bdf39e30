package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/registry"
)

// Defaults of optional fields of a recipe.
const (
	defaultMemoryMiB = 512
	defaultVCPUs     = 1
	defaultDiskMiB   = 1024
)

// Bounds on the fields of a recipe. The upper bounds catch typing errors; they are not limits of
// the host.
const (
	minMemoryMiB, maxMemoryMiB = 64, 1 << 20
	minDiskMiB, maxDiskMiB     = 64, 1 << 20
	maxWarmupSecs              = 3600 // the daemon has the same bound
	maxRecipeBytes             = 1 << 20
	maxRecipeFileBytes         = 64 << 20
)

// RecipeFile is the file name of a recipe inside its directory.
const RecipeFile = "recipe.yaml"

// Recipe describes a root file system, and the commands to run in it before it becomes a snapshot.
type Recipe struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`
	// debian:<suite>, oci:<dir>[:<tag>], docker-archive:<file>, docker://<reference>
	Base     string            `yaml:"base"`
	Packages []string          `yaml:"packages"` // Debian packages, "name" or "name=version"; Debian bases only
	Files    []File            `yaml:"files"`
	User     bool              `yaml:"user"` // whether to add an account "user" to an image that has none
	Env      map[string]string `yaml:"env"`
	Warmup   Warmup            `yaml:"warmup"`
	// network for the warm-up and for children; nil: the warm-up has no network, and children have
	// the daemon's default
	Network *Network `yaml:"network"`
	Limits  Limits   `yaml:"limits"` // limits of children
	Hooks   Hooks    `yaml:"hooks"`  // hooks of children
	// how to treat children that repeat random numbers: "strict" refuses such children; "report"
	// (or empty) reports them
	Unique    string `yaml:"unique"`
	MemoryMiB int    `yaml:"memory_mib"` // 0 means 512
	VCPUs     int    `yaml:"vcpus"`      // 0 means 1
	// number of volumes that a child can mount
	VolumeSlots int `yaml:"volume_slots"`
	// size of the file system; unused space takes no space on the host; 0 means 1024
	DiskMiB int `yaml:"disk_mib"`

	Login *registry.Login `yaml:"-"` // credentials for the registry of Base; nil: the login stored by `docker login`

	text  []byte        // text that the recipe was parsed from; empty: none
	fsys  fs.FS         // recipe's directory, which has the sources of Files
	dir   string        // relative paths in Base start here
	files []overlayFile // content of Files
}

// File names a file, or a directory with all its content, in the recipe's directory. The file or
// directory is copied into the image, where root owns it.
type File struct {
	Source string `yaml:"source"` // path relative to the recipe's directory
	Target string `yaml:"target"` // absolute path of the copy in the image
	Mode   Mode   `yaml:"mode"`   // mode of files; 0 means 0644, or 0755 if the source is executable
}

// Mode is permission bits, written in octal as chmod takes them ("0755").
type Mode uint32

// UnmarshalYAML parses the digits itself, because YAML's interpretation of a number as octal
// depends on a leading zero.
func (m *Mode) UnmarshalYAML(node *yaml.Node) error {
	v, err := strconv.ParseUint(strings.TrimPrefix(node.Value, "0o"), 8, 32)
	if err != nil || v > 0o7777 {
		return fmt.Errorf("line %d: mode %q is not octal permission bits such as 0755", node.Line, node.Value)
	}
	*m = Mode(v)
	return nil
}

// Warmup runs in the parent before the snapshot is taken, so that children of the snapshot have its
// effects in memory. First Start is started, then the commands run one after another, then the
// Python code runs in the warm interpreter.
type Warmup struct {
	Start       string   `yaml:"start"`    // command for /bin/sh -c; runs first, and keeps running
	Probe       string   `yaml:"probe"`    // command for /bin/sh -c; succeeds when Start is warm
	Commands    []string `yaml:"commands"` // commands, each for /bin/sh -c
	Python      string   `yaml:"python"`
	TimeoutSecs float64  `yaml:"timeout_secs"` // limit of each command and of the code; 0 means 600, the daemon's default
}

// Network is a network policy, as in the daemon's API. A recipe may set only the mode.
type Network struct {
	Mode  string   `yaml:"mode"`
	Allow []string `yaml:"allow"`
	Deny  []string `yaml:"deny"`

	AllowECH bool `yaml:"allow_ech"`
}

// UnmarshalYAML reads either a mode or a mapping.
func (n *Network) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*n = Network{Mode: node.Value}
		return nil
	}
	type fields Network
	for i := 0; i < len(node.Content); i += 2 { // decoding a node does not reject unknown fields
		switch name := node.Content[i]; name.Value {
		case "mode", "allow", "deny", "allow_ech":
		default:
			return fmt.Errorf("line %d: unknown field %q in network: it has mode, allow, deny and allow_ech", name.Line,
				name.Value)
		}
	}
	return node.Decode((*fields)(n))
}

// Limits bounds a child's use of host resources.
type Limits struct{ vm.Limits }

// UnmarshalYAML reads a mapping and rejects unknown fields.
func (l *Limits) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: limits: want fields, such as {memory_mib: 256}", node.Line)
	}
	for i := 0; i < len(node.Content); i += 2 { // decoding a node does not reject unknown fields
		switch name := node.Content[i]; name.Value {
		case "memory_mib", "swap_mib", "cpus", "cpu_weight", "io_bytes_per_second", "io_ops_per_second":
		default:
			return fmt.Errorf("line %d: unknown field %q in limits: it has memory_mib, swap_mib, cpus, cpu_weight, "+
				"io_bytes_per_second and io_ops_per_second", name.Line, name.Value)
		}
	}
	return node.Decode(&l.Limits)
}

// LoadRecipe reads and checks a recipe: a file, or a directory with a recipe.yaml. It also reads
// the files that the recipe names, so that a later change to them does not affect a running build.
func LoadRecipe(name string) (*Recipe, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("load recipe: %w", err)
	}
	dir, file := name, RecipeFile
	if !info.IsDir() {
		dir, file = filepath.Split(name)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("load recipe %s: %w", name, err)
	}
	// root prevents the sources of files, and symbolic links, from leading out of the recipe's
	// directory. It is closed when the Recipe is garbage-collected.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("load recipe: %w", err)
	}
	r, err := readRecipe(root.FS(), file)
	if err != nil {
		return nil, fmt.Errorf("load recipe %s: %w", filepath.Join(dir, file), err)
	}
	r.dir = dir
	return r, nil
}

// LoadRecipeFS is like LoadRecipe, but for a recipe in an fs.FS, such as one embedded in a program.
// A relative path in the recipe's base starts at the working directory.
func LoadRecipeFS(fsys fs.FS, dir string) (*Recipe, error) {
	sub, err := fs.Sub(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("load recipe %s: %w", dir, err)
	}
	r, err := readRecipe(sub, RecipeFile)
	if err != nil {
		return nil, fmt.Errorf("load recipe %s: %w", dir, err)
	}
	return r, nil
}

func readRecipe(fsys fs.FS, name string) (*Recipe, error) {
	text, err := readBounded(fsys, name, maxRecipeBytes)
	if err != nil {
		return nil, err
	}
	r, err := ParseRecipe(text)
	if err != nil {
		return nil, err
	}
	if r.files, err = readFiles(fsys, r.Files); err != nil {
		return nil, err
	}
	r.fsys = fsys
	return r, nil
}

func readBounded(fsys fs.FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readLimited(f, name, limit)
}

// readLimited reads r to its end, up to limit bytes. Errors contain the given name of r.
func readLimited(r io.Reader, name string, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return data, nil
}

// unknownField matches yaml.v3's error for an unknown field. The Go type in this error does not
// help a user.
var unknownField = regexp.MustCompile(`field (\S+) not found in type \S+`)

// ParseRecipe parses and checks the text of a recipe. It reads none of the files that the recipe
// names.
func ParseRecipe(text []byte) (*Recipe, error) {
	if len(text) > maxRecipeBytes {
		return nil, fmt.Errorf("the recipe is larger than %d bytes", maxRecipeBytes)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	var r Recipe
	err := dec.Decode(&r)
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty")
	}
	if err != nil {
		text := strings.TrimPrefix(err.Error(), "yaml: ")
		return nil, errors.New(unknownField.ReplaceAllString(strings.ReplaceAll(text, "unmarshal errors:\n  ", ""),
			`unknown field "$1"`))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document in the file")
	}
	r.setDefaults()
	r.text = text
	return &r, r.validate()
}

func (r *Recipe) setDefaults() {
	if r.MemoryMiB == 0 {
		r.MemoryMiB = defaultMemoryMiB
	}
	if r.VCPUs == 0 {
		r.VCPUs = defaultVCPUs
	}
	if r.DiskMiB == 0 {
		r.DiskMiB = defaultDiskMiB
	}
}

var (
	namePattern  = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	suitePattern = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	// Debian policy §5.6.1, §5.6.12
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9][A-Za-z0-9.+:~-]*)?$`)
	envPattern     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

func (r *Recipe) validate() error {
	if !namePattern.MatchString(r.Name) {
		return fmt.Errorf("name: %q must be 1 to 63 of a-z, 0-9, '.', '_', '-' and start with a letter or digit", r.Name)
	}
	base, err := parseBase(r.Base)
	if err != nil {
		return err
	}
	if len(r.Packages) > 0 && base.kind != baseDebian {
		return fmt.Errorf("packages: only a debian:<suite> base takes packages, not %q; put them into the container image",
			r.Base)
	}
	for i, p := range r.Packages {
		if !packagePattern.MatchString(p) {
			return fmt.Errorf("packages[%d]: %q is not a Debian package name or name=version", i, p)
		}
	}
	for k, v := range r.Env {
		if !envPattern.MatchString(k) || strings.ContainsRune(v, 0) {
			return fmt.Errorf("env: %q: names are letters, digits and '_'; values have no NUL byte", k)
		}
	}
	for _, n := range []struct {
		field         string
		value, lo, hi int
	}{
		{"memory_mib", r.MemoryMiB, minMemoryMiB, maxMemoryMiB},
		{"vcpus", r.VCPUs, 1, vm.MaxVCPUs},
		{"volume_slots", r.VolumeSlots, 0, vm.MaxVolumeSlots},
		{"disk_mib", r.DiskMiB, minDiskMiB, maxDiskMiB},
	} {
		if n.value < n.lo || n.value > n.hi {
			return fmt.Errorf("%s: %d is not between %d and %d", n.field, n.value, n.lo, n.hi)
		}
	}
	if t := r.Warmup.TimeoutSecs; !(t >= 0 && t <= maxWarmupSecs) { // also rejects NaN
		return fmt.Errorf("warmup: timeout_secs: %v is not between 0 and %d", t, maxWarmupSecs)
	}
	if (r.Warmup.Start == "") != (r.Warmup.Probe == "") {
		return errors.New("warmup: start and probe: want both or none: the probe succeeds when what start runs is warm")
	}
	if n := r.Network; n != nil {
		if n.Mode == "" && len(n.Allow) == 0 {
			return errors.New("network: mode: missing: want none, public, allow or open")
		}
		if _, err := netproto.ParsePolicy(n.Mode, n.Allow, n.Deny); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	if r.Unique != "" && r.Unique != "report" && r.Unique != "strict" {
		return fmt.Errorf("unique: %.70q: want report or strict", r.Unique)
	}
	if err := r.Limits.Check(); err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	if err := r.Hooks.Check(); err != nil {
		return fmt.Errorf("hooks: %w", err)
	}
	return r.validateFiles()
}

func (r *Recipe) validateFiles() error {
	seen := make(map[string]bool)
	for i, f := range r.Files {
		if !fs.ValidPath(f.Source) || f.Source == "." {
			return fmt.Errorf("files[%d]: source: %q must be a path below the recipe's directory", i, f.Source)
		}
		if !path.IsAbs(f.Target) || path.Clean(f.Target) != f.Target {
			return fmt.Errorf("files[%d]: target: %q must be an absolute path without '.', '..' or a slash at its end", i,
				f.Target)
		}
		if err := CheckTarget(f.Target); err != nil {
			return fmt.Errorf("files[%d]: %w", i, err)
		}
		if r.User && slices.Contains([]string{"/etc/passwd", "/etc/group", "/etc/shadow"}, f.Target) {
			return fmt.Errorf("files[%d]: target: %q: leave user out, and have the account in this file", i, f.Target)
		}
		if seen[f.Target] {
			return fmt.Errorf("files[%d]: target: %q appears twice", i, f.Target)
		}
		seen[f.Target] = true
	}
	return nil
}

// EnvOver returns the environment of a base with the recipe's variables, which take precedence.
func (r *Recipe) EnvOver(base map[string]string) map[string]string {
	env := make(map[string]string)
	maps.Copy(env, base)
	maps.Copy(env, r.Env)
	return env
}

// The kinds of base.
const (
	baseDebian        = "debian"
	baseOCI           = "oci"
	baseDockerArchive = "docker-archive"
	baseRegistry      = "docker" // as in docker://
)

type base struct {
	kind string
	arg  string // suite, path or reference
}

func parseBase(s string) (base, error) {
	kind, arg, ok := strings.Cut(s, ":")
	if ok && arg != "" {
		switch kind {
		case baseDebian:
			if suitePattern.MatchString(arg) {
				return base{kind, arg}, nil
			}
		case baseOCI, baseDockerArchive:
			return base{kind, arg}, nil
		case baseRegistry:
			if ref, ok := strings.CutPrefix(arg, "//"); ok && ref != "" {
				return base{kind, ref}, nil
			}
		}
	}
	return base{}, fmt.Errorf("base: %q is none of debian:<suite>, oci:<directory>[:<tag>], docker-archive:<file>, docker://<reference>", s)
}
