package docker

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// summary describes a container in a list.
type summary struct {
	ID         string `json:"Id"`
	Names      []string
	Image      string
	ImageID    string
	Command    string
	Created    int64 // seconds of Unix time
	Ports      []listedPort
	Labels     map[string]string
	State      string
	Status     string
	HostConfig struct{ NetworkMode string }
	Networks   struct {
		Networks map[string]endpoint
	} `json:"NetworkSettings"`
	Mounts []any
}

// endpoint describes the network of a container. It has no address, because only the daemon can
// reach the container.
type endpoint struct {
	NetworkID, EndpointID, Gateway, IPAddress, MacAddress string
	IPPrefixLen                                           int
}

func networksOf(sp *spec) map[string]endpoint {
	if sp.Host.NetworkMode == noNetwork {
		return map[string]endpoint{noNetwork: {}}
	}
	return map[string]endpoint{"bridge": {}}
}

// maxList bounds the number of containers that a client may ask for.
const maxList = 1 << 20

func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	wanted, err := filtersOf(r, "id", "name", "label", "status", "ancestor", "exited")
	if err != nil {
		return err
	}
	names, err := wanted.patterns("name")
	if err != nil {
		return err
	}
	limit, err := intQuery(r, "limit", 0, -1, maxList)
	if err != nil {
		return err
	}
	everything := boolQuery(r, "all") || limit > 0 || len(wanted["status"])+len(wanted["exited"]) > 0
	all := s.all(r)
	slices.SortFunc(all, func(a, b found) int { return b.info.Created.Compare(a.info.Created) })
	var list []found
	for _, c := range all {
		st, _, _ := c.now()
		status := statusOf(st, c.info)
		if status != running && status != paused && !everything || !wanted.begins("id", containerID(c.id)) ||
			!named(names, c.name()) || !wanted.labels(c.info.Labels) || !wanted.match("status", status) ||
			!wanted.match("exited", strconv.Itoa(st.ExitCode)) {
			continue
		}
		if len(wanted["ancestor"]) > 0 {
			sp := specOf(c.info)
			if !wanted.match("ancestor", sp.Config.Image, sp.Image, tagOf(sp.Config.Image)+":"+latest) {
				continue
			}
		}
		if list = append(list, c); limit > 0 && len(list) == limit {
			break
		}
	}
	return face.WriteArray(w, list, func(c found) summary { return summaryOf(r, c) })
}

func summaryOf(r *http.Request, c found) summary {
	st, _, _ := c.now()
	sp := specFor(r, c.info)
	status := statusOf(st, c.info)
	one := summary{ID: containerID(c.id), Names: []string{"/" + c.name()}, Image: sp.Config.Image, ImageID: sp.Image,
		Command: commandLine(sp.args()), Created: c.info.Created.Unix(), Ports: c.listPorts(), Labels: labelsOf(c.info),
		State: status, Status: statusText(status, st, c.info), Mounts: []any{}}
	one.HostConfig.NetworkMode, one.Networks.Networks = "default", networksOf(&sp)
	return one
}

// mayReadSecrets reports whether the client of a request may read commands and variables. They may
// contain secrets, and the scope read gives no access to anything inside a sandbox.
func mayReadSecrets(r *http.Request) bool { return auth.From(r.Context()).Need(auth.Run) == nil }

// specFor returns the part of a container's specification that the client of a request may read.
func specFor(r *http.Request, i sandbox.Info) spec {
	sp := specOf(i)
	if !mayReadSecrets(r) {
		sp.Config.Cmd, sp.Config.Entrypoint, sp.Config.Env = nil, nil, nil
	}
	return sp
}

func labelsOf(i sandbox.Info) map[string]string {
	if i.Labels == nil {
		return map[string]string{}
	}
	return i.Labels
}

// maxCommand bounds the text of a command in a list, in bytes.
const maxCommand = 4 << 10

func commandLine(args []string) string {
	text := ""
	for n, arg := range args {
		if n > 0 {
			text += " "
		}
		if text += arg; len(text) > maxCommand {
			return text[:maxCommand]
		}
	}
	return text
}

// statusText returns the status in the words of Docker's lists.
func statusText(status string, s state, i sandbox.Info) string {
	begun := s.Started
	if begun.IsZero() {
		begun = i.Created
	}
	switch status {
	case created:
		return "Created"
	case exited:
		if s.Finished.IsZero() {
			return "Exited (0)"
		}
		return fmt.Sprintf("Exited (%d) %s ago", s.ExitCode, ago(time.Since(s.Finished)))
	case paused:
		return "Up " + ago(time.Since(begun)) + " (Paused)"
	}
	return "Up " + ago(time.Since(begun))
}

// ago writes a duration for people.
func ago(d time.Duration) string {
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}} {
		switch n := int(d / unit.of); {
		case n > 1:
			return fmt.Sprintf("%d %ss", n, unit.name)
		case n == 1:
			return "1 " + unit.name
		}
	}
	if n := int(d / time.Second); n != 1 {
		return fmt.Sprintf("%d seconds", n)
	}
	return "1 second"
}

// inspection describes a container in detail.
type inspection struct {
	ID              string `json:"Id"`
	Created         string
	Path            string
	Args            []string
	State           containerState
	Image           string
	Name            string
	RestartCount    int
	Driver          string
	Platform        string
	ExecIDs         []string
	HostConfig      host
	GraphDriver     graphDriver
	Mounts          []any
	Config          inspectConfig
	NetworkSettings networkSettings
	Sandbox         string `json:"ForkdSandbox"` // id of the sandbox in forkd's own API
}

// inspectConfig adds to a configuration the fields that Docker has and forkd does not store.
type inspectConfig struct {
	config
	Hostname   string
	Domainname string
}

type containerState struct {
	Status                                       string
	Running, Paused, Restarting, OOMKilled, Dead bool
	Pid, ExitCode                                int
	Error, StartedAt, FinishedAt                 string
}

type networkSettings struct {
	Ports    map[string][]binding
	Networks map[string]endpoint
	endpoint
}

func (s *Server) inspect(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusOK, s.inspectionOf(r, c))
}

func (s *Server) inspectionOf(r *http.Request, c found) inspection {
	st, _, _ := c.now()
	if !mayReadSecrets(r) {
		st.Error = "" // it may quote the command
	}
	sp := specFor(r, c.info)
	status := statusOf(st, c.info)
	out := inspection{ID: containerID(c.id), Created: docktime(c.info.Created), Args: []string{}, Image: sp.Image,
		Name: "/" + c.name(), Driver: runtimeName, Platform: "linux", ExecIDs: s.execs.of(c.id), HostConfig: sp.Host,
		GraphDriver: graphDriver{Name: runtimeName, Data: map[string]string{}}, Mounts: []any{}, Sandbox: c.id}
	if args := sp.args(); len(args) > 0 {
		out.Path, out.Args = args[0], args[1:]
	}
	if st.Status == "" {
		st.Started = c.info.Created
	}
	out.State = containerState{Status: status, Running: status == running || status == paused, Paused: status == paused,
		ExitCode: st.ExitCode, Error: st.Error, StartedAt: docktime(st.Started), FinishedAt: docktime(st.Finished)}
	if out.State.Running {
		out.State.Pid = c.info.PID
	} else if c.info.State == sandbox.Exited && out.State.Error == "" {
		out.State.Error = "the virtual machine has ended: " + c.info.ExitReason
	}
	out.Config = inspectConfig{config: sp.Config, Hostname: c.info.Hostname}
	out.Config.Labels = labelsOf(c.info)
	if out.Config.Env == nil {
		out.Config.Env = []string{}
	}
	if out.HostConfig.NetworkMode == "" {
		out.HostConfig.NetworkMode = "default"
	}
	if out.HostConfig.RestartPolicy.Name == "" {
		out.HostConfig.RestartPolicy.Name = "no"
	}
	out.HostConfig.LogConfig.Type = "json-file"
	out.HostConfig.Memory = int64(c.info.Limits.MemoryMiB << 20)
	out.HostConfig.NanoCPUs = int64(c.info.Limits.CPUs * 1e9)
	out.NetworkSettings = networkSettings{Ports: c.published(sp.Config.ExposedPorts), Networks: networksOf(&sp)}
	return out
}
