package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/dockerfile"
)

// dockerfileOptions are the flags of `forkd build` for a Dockerfile.
type dockerfileOptions struct {
	file     string
	args     []string
	target   string
	noCache  bool
	encrypt  bool
	check    bool
	progress string
	secrets  []string
	auth     []string
	vcpus    uint32
	memory   uint64
	disk     int
}

// onlyOfDockerfiles has the flags that only builds of Dockerfiles accept. onlyOfRecipes has the
// flags that only builds of recipes accept.
var (
	onlyOfDockerfiles = []string{"build-arg", "target", "check", "secret", "disk-mib", "registry-auth"}
	onlyOfRecipes     = []string{"kernel", "reuse", "ready-timeout-secs", "verbose", "net", "allow", "deny", "allow-ech",
		"memory", "swap", "cpus", "cpu-weight", "io-bytes-per-second", "io-ops-per-second"}
)

func (o *dockerfileOptions) register(f *pflag.FlagSet) {
	f.StringVarP(&o.file, "file", "f", "", "Dockerfile to build; - is standard input (default CONTEXT/Dockerfile)")
	f.StringArrayVar(
		&o.args,
		"build-arg",
		nil,
		"for a Dockerfile: NAME=VALUE for its ARG; NAME alone takes the value of your environment variable NAME",
	)
	f.StringVar(&o.target, "target", "", "for a Dockerfile: stage to build (default the last)")
	f.BoolVar(&o.check, "check", false, "for a Dockerfile: lint it, and build nothing")
	f.StringArrayVar(
		&o.secrets,
		"secret",
		nil,
		"for a Dockerfile: id=ID,src=FILE or id=ID,env=VARIABLE for RUN --mount=type=secret",
	)
	f.StringArrayVar(&o.auth, "registry-auth", nil,
		"for a Dockerfile: HOST of a registry whose 'docker login' the daemon may use in this build")
	f.StringVar(&o.progress, "progress", "auto", "auto, plain or tty")
	f.IntVar(&o.disk, "disk-mib", 0, "size in MiB of the VM's disk, for a Dockerfile that starts from an image (default 8192)")
}

// isDockerfile reports whether an argument of `forkd build` is the context of a Dockerfile. It
// returns an error if a flag is set that only the other kind of build accepts.
func (o *dockerfileOptions) isDockerfile(cmd *cobra.Command, arg string) (bool, error) {
	is := o.file != ""
	if !is {
		_, recipe := os.Stat(filepath.Join(arg, "recipe.yaml"))
		_, file := os.Stat(filepath.Join(arg, "Dockerfile"))
		is = file == nil && errors.Is(recipe, fs.ErrNotExist)
	}
	wrong, kind := onlyOfDockerfiles, "a Dockerfile: give -f, or a directory with one"
	if is {
		wrong, kind = onlyOfRecipes, "a recipe"
	}
	return is, refuseFlags(cmd, wrong, kind)
}

// refuseFlags returns an error if flags for another kind of build are set.
func refuseFlags(cmd *cobra.Command, names []string, kind string) error {
	for _, name := range names {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return usageError{fmt.Errorf("--%s is for %s", name, kind)}
		}
	}
	return nil
}

// open opens the context of a build and its Dockerfile. A relative path of the Dockerfile is
// relative to the working directory. Errors name the Dockerfile as the user typed it.
func (o *dockerfileOptions) open(dir string, in io.Reader) (*client.BuildContext, error) {
	name, path := o.file, o.file
	switch name {
	case "":
		name = filepath.Join(dir, "Dockerfile")
	case "-":
		name = "Dockerfile"
	default:
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		path = abs
	}
	files, err := client.OpenBuildContext(dir, path)
	if err != nil {
		return nil, err
	}
	files.Name = name
	if o.file != "-" {
		return files, nil
	}
	text, err := io.ReadAll(io.LimitReader(in, dockerfile.MaxText+1))
	if err == nil && len(text) > dockerfile.MaxText {
		err = fmt.Errorf("the Dockerfile has more than %d bytes", dockerfile.MaxText)
	}
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	files.Dockerfile = string(text)
	return files, nil
}

// buildArgs returns the values for ARG instructions.
func (o *dockerfileOptions) buildArgs() (map[string]string, error) {
	values := make(map[string]string)
	for _, arg := range o.args {
		name, value, ok := strings.Cut(arg, "=")
		if name == "" {
			return nil, usageError{fmt.Errorf("--build-arg %s: want NAME=VALUE", arg)}
		}
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				continue
			}
		}
		values[name] = value
	}
	return values, nil
}

// checkContext returns an error if the context is not a directory.
func checkContext(context string) error {
	if context == "-" || strings.Contains(context, "://") || strings.HasPrefix(context, "git@") {
		return usageError{fmt.Errorf("context %q: want a directory of this host: archives and URLs are not supported", context)}
	}
	info, err := os.Stat(context)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return usageError{
			fmt.Errorf("context %q: not a directory; give a Dockerfile with another name by -f", context),
		}
	}
	return nil
}

// runCheck prints the linter's warnings. It needs no daemon.
func (o *dockerfileOptions) runCheck(cmd *cobra.Command, context string) error {
	files, err := o.open(context, cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer files.Close()
	name := files.Name
	list, err := dockerfile.Check(name, []byte(files.Dockerfile))
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	for _, w := range list {
		printf(out, "%s:%d: %s: %s\n", name, w.Line, w.Rule, w.Text)
	}
	if len(list) > 0 {
		return fmt.Errorf("%s: warnings: %d", name, len(list))
	}
	printf(out, "%s: no warnings\n", name)
	return nil
}

// checkProgress checks the value of --progress.
func checkProgress(progress string) error {
	if progress != "auto" && progress != "plain" && progress != "tty" {
		return usageError{fmt.Errorf("--progress %s: want auto, plain or tty", progress)}
	}
	return nil
}

// isLive reports whether the progress on w is redrawn, given the value of --progress.
func isLive(progress string, w io.Writer) bool {
	return progress == "tty" || progress == "auto" && canRedraw(w)
}

// run builds a snapshot from a Dockerfile.
func (o *dockerfileOptions) run(cmd *cobra.Command, c *common, tag, dir string) error {
	if err := checkContext(dir); err != nil {
		return err
	}
	if err := checkProgress(o.progress); err != nil {
		return err
	}
	if o.check {
		return o.runCheck(cmd, dir)
	}
	files, err := o.open(dir, cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer files.Close()
	if tag == "" {
		path, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		tag = strings.ToLower(filepath.Base(path))
	}
	args, err := o.buildArgs()
	if err != nil {
		return err
	}
	secrets, err := readSecrets(o.secrets)
	if err != nil {
		return err
	}
	auths, err := registryAuth(cmd.Context(), o.auth)
	if err != nil {
		return err
	}
	req := client.BuildRequest{
		Tag:        tag,
		Replace:    true,
		Dockerfile: files.Dockerfile,
		Name:       files.Name,
		Target:     o.target,
		Args:       args,
		NoCache:    o.noCache,
		Encrypt:    o.encrypt,
		VCPUs:      o.vcpus,
		MemoryMiB:  o.memory,
		DiskMiB:    o.disk,
		Secrets:    secrets,

		RegistryAuth: auths,
	}
	return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
		w := cmd.ErrOrStderr()
		show := newProgress(w, isLive(o.progress, w))
		r, err := cl.Build(ctx, req, files.Pack, show.event)
		show.end()
		if err != nil {
			return err
		}
		if c.json() {
			return writeJSON(cmd.OutOrStdout(), r)
		}
		printf(cmd.OutOrStdout(), "%s: %d steps done, %d cached, %.1f s\n", r.Tag, r.Run, r.Cached, r.MS/1000)
		return nil
	})
}
