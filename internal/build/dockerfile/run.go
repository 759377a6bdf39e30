package dockerfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"github.com/forkd/forkd/internal/build/plan"
)

// scriptDir is the directory for the script of a here-document that begins with "#!". The script
// exists only while it runs.
const scriptDir = "/var/tmp/forkd-heredoc"

// Bounds on mounts. A relative target is stored with the working directory in front of it, so each
// mount can repeat a long path.
const (
	maxMounts    = 100  // mounts of one command
	maxAllMounts = 5000 // mounts of all commands
)

func (r *reader) run(ctx context.Context, st *stage, c *instructions.RunCommand) error {
	if s := instructions.GetSecurity(c); s != "" && s != instructions.SecuritySandbox {
		return fmt.Errorf("--security=%s: the guest is a machine of its own: root may do everything there already", s)
	}
	if len(instructions.GetDevices(c)) > 0 {
		return errors.New("--device: a sandbox has no devices of the host")
	}
	args, script, err := commandOf(c)
	if err != nil {
		return err
	}
	if c.PrependShell && script == nil {
		args = st.inShell(strings.Join(args, " "))
	}
	run := &plan.Run{Process: st.process(args), Script: script}
	maps.Copy(run.Env, r.proxies) // every command has the proxy variables, even without an ARG instruction
	switch n := instructions.GetNetwork(c); n {
	case "", instructions.NetworkDefault:
	case instructions.NetworkNone:
		run.Network = "none"
	default:
		return fmt.Errorf("--network=%s: a sandbox has no network of the host: want default or none", n)
	}
	mounts := instructions.GetMounts(c)
	if len(mounts) > maxMounts {
		return fmt.Errorf("it has %d mounts: want at most %d", len(mounts), maxMounts)
	}
	if r.mounts += len(mounts); r.mounts > maxAllMounts {
		return fmt.Errorf("the commands of the Dockerfile have more than %d mounts: want one of a directory above them",
			maxAllMounts)
	}
	for _, m := range mounts {
		mount, err := r.mount(ctx, st, m)
		if err != nil {
			return fmt.Errorf("--mount=type=%s: %w", m.Type, err)
		}
		run.Mounts = append(run.Mounts, mount)
	}
	r.next(st, lineOf(c.Location()), oneLine(c.String()), plan.Step{Run: run})
	if st.memory && r.plan.Steps[st.step].HasSecret() {
		r.note(lineOf(c.Location()), "--mount=type=secret: from here on the stage has no processes and memory of its base: "+
			"no memory is kept of a step with a secret")
		st.memory = false
	}
	return nil
}

// commandOf returns the command of a RUN instruction and, if it is a here-document with a script,
// the script.
func commandOf(c *instructions.RunCommand) (args []string, script *plan.Inline, err error) {
	args = c.CmdLine
	if len(c.Files) == 0 {
		return args, nil, nil
	}
	if len(args) != 1 || !c.PrependShell {
		return nil, nil, errors.New("a here-document needs the shell form")
	}
	if parser.MustParseHeredoc(args[0]) == nil { // the shell itself reads the here-documents in a command line
		var b strings.Builder
		b.WriteString(args[0])
		for _, file := range c.Files {
			b.WriteString("\n" + file.Data + file.Name)
		}
		return []string{b.String()}, nil, nil
	}
	data := c.Files[0].Data
	if c.Files[0].Chomp {
		data = parser.ChompHeredocContent(data)
	}
	if !strings.HasPrefix(data, "#!") {
		return []string{data}, nil, nil
	}
	file := path.Join(scriptDir, path.Base(c.Files[0].Name))
	return []string{file}, &plan.Inline{Path: file, Data: data}, nil
}

// oneLine returns the text of an instruction on one line, for the name of its step.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "\\\n", " ")), " ")
	if len(text) > 120 {
		text = strings.ToValidUTF8(text[:117], "") + "..."
	}
	return text
}

func (r *reader) mount(ctx context.Context, st *stage, m *instructions.Mount) (plan.Mount, error) {
	mount := plan.Mount{Kind: string(m.Type), ReadOnly: m.ReadOnly}
	if m.Target != "" {
		mount.Target = st.absolute(m.Target)
	}
	if m.Type == instructions.MountTypeSecret {
		err := st.secretMount(m, &mount)
		return mount, err
	}
	if mount.Target == "/" {
		return mount, errors.New("target=/: the root directory cannot be mounted over")
	}
	switch m.Type {
	case instructions.MountTypeSSH:
		return mount, errors.New("the build has no connection to your agent: give a key of this build's own by --mount=type=secret, " +
			"or fetch the source on the host and COPY it")
	case instructions.MountTypeTmpfs:
		mount.SizeMiB = (m.SizeLimit + 1<<20 - 1) >> 20
	case instructions.MountTypeCache:
		if m.From != "" || m.ReadOnly {
			return mount, errors.New("from and ro have no meaning for a cache here: leave them out")
		}
		mount.ID = cmp.Or(m.CacheID, mount.Target)
		takeOwner(m, &mount)
	case instructions.MountTypeBind:
		src, err := r.bindSource(ctx, st, m)
		if err != nil {
			return mount, err
		}
		mount.Source = &src
	default:
		return mount, errors.New("forkd does not know this kind")
	}
	if mount.Target == "" {
		return mount, errors.New("target is missing")
	}
	return mount, nil
}

// secretMount reads a mount of a secret. If the mount has no target, the secret is a file below
// /run/secrets.
func (st *stage) secretMount(m *instructions.Mount, mount *plan.Mount) error {
	if st.foreign > 0 {
		return errors.New("an ONBUILD trigger of an image gets no secret: write this RUN in the Dockerfile, with an image " +
			"without the trigger")
	}
	if st.warmed {
		return errors.New("it stands below a # forkd: warm line, whose memory would have the secret: put it above")
	}
	mount.ID, mount.ReadOnly, mount.Required = cmp.Or(m.Source, m.CacheID), false, m.Required
	if mount.ID == "" {
		mount.ID = path.Base(m.Target) // the parser requires an id or a target
	}
	if m.Env != nil {
		mount.Env = cmp.Or(*m.Env, mount.ID)
	} else if m.Target == "" {
		mount.Target = "/run/secrets/" + path.Base(mount.ID)
	}
	takeOwner(m, mount)
	if mount.Target == "/" {
		return errors.New("target=/: want a file")
	}
	return nil
}

// takeOwner copies the mode and the owner that the instruction sets, if it sets any.
func takeOwner(m *instructions.Mount, mount *plan.Mount) {
	if m.Mode != nil {
		mount.Mode = strconv.FormatUint(*m.Mode, 8)
	}
	if m.UID != nil {
		mount.UID = *m.UID
	}
	if m.GID != nil {
		mount.GID = *m.GID
	}
}

func (r *reader) bindSource(ctx context.Context, st *stage, m *instructions.Mount) (plan.Source, error) {
	if m.From == "" {
		sources, err := r.contextSources([]string{cmp.Or(m.Source, ".")}, copyFlags{})
		if err != nil {
			return plan.Source{}, err
		}
		return sources[0], nil
	}
	step, err := r.otherStage(ctx, st, m.From, 0)
	if err != nil {
		return plan.Source{}, err
	}
	return plan.Source{Step: &step, Path: path.Clean("/" + m.Source)}, nil
}
