package docker

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/vm"
)

// config is the part of a container's configuration that does not depend on the host.
type config struct {
	Image        string              `json:"Image"`
	Cmd          words               `json:"Cmd"`
	Entrypoint   words               `json:"Entrypoint"`
	Env          []string            `json:"Env"`
	User         string              `json:"User"`
	WorkingDir   string              `json:"WorkingDir"`
	TTY          bool                `json:"Tty"`
	OpenStdin    bool                `json:"OpenStdin"`
	StdinOnce    bool                `json:"StdinOnce"`
	AttachStdin  bool                `json:"AttachStdin"`
	AttachStdout bool                `json:"AttachStdout"`
	AttachStderr bool                `json:"AttachStderr"`
	StopSignal   string              `json:"StopSignal,omitempty"`
	StopTimeout  *int                `json:"StopTimeout,omitempty"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts,omitempty"`
	Labels       map[string]string   `json:"Labels"`
}

// host is the part of a container's configuration that depends on the host.
type host struct {
	AutoRemove    bool     `json:"AutoRemove"`
	NetworkMode   string   `json:"NetworkMode"`
	Memory        int64    `json:"Memory"`     // bytes
	MemorySwap    int64    `json:"MemorySwap"` // bytes of memory and swap; -1: no limit
	NanoCPUs      int64    `json:"NanoCpus"`
	CPUShares     int64    `json:"CpuShares"`
	CPUPeriod     int64    `json:"CpuPeriod"` // microseconds
	CPUQuota      int64    `json:"CpuQuota"`  // microseconds per period
	Init          *bool    `json:"Init,omitempty"`
	CapAdd        []string `json:"CapAdd,omitempty"`
	RestartPolicy policy   `json:"RestartPolicy"`

	PortBindings    map[string][]binding `json:"PortBindings,omitempty"`
	PublishAllPorts bool                 `json:"PublishAllPorts"`

	LogConfig logType `json:"LogConfig"`
}

type policy struct {
	Name              string `json:"Name"`
	MaximumRetryCount int    `json:"MaximumRetryCount"`
}

func (p *policy) check() error {
	if p.Name != "" && p.Name != "no" {
		return unsupported("HostConfig.RestartPolicy", "start the container again when it has exited")
	}
	return nil
}

type logType struct {
	Type string `json:"Type"`
}

// Fields that a request to create a container may have. Some of them have no effect; for most of
// these, checkHost accepts only values that ask for nothing.
var (
	configFields = []string{"Image", "Cmd", "Entrypoint", "Env", "User", "WorkingDir", "Tty", "OpenStdin", "StdinOnce",
		"AttachStdin", "AttachStdout", "AttachStderr", "StopSignal", "StopTimeout", "ExposedPorts", "Labels"}
	hostFields = []string{"AutoRemove", "NetworkMode", "Memory", "MemorySwap", "NanoCpus", "CpuShares", "CpuPeriod",
		"CpuQuota", "Init", "CapAdd", "RestartPolicy", "LogConfig", "ConsoleSize", "MemorySwappiness", "ShmSize",
		"PidsLimit", "Runtime", "Isolation", "CgroupnsMode", "IpcMode", "ContainerIDFile",
		"PortBindings", "PublishAllPorts"}
)

// createRequest is the body of a request to create a container.
type createRequest struct {
	config
	HostConfig host
}

// create forks the image of a new container. The main process starts later.
func (s *Server) create(w http.ResponseWriter, r *http.Request) error {
	name, err := nameQuery(r)
	if err != nil {
		return err
	}
	if err := checkPlatform(r); err != nil {
		return err
	}
	req, err := readCreate(w, r)
	if err != nil {
		return err
	}
	img, err := s.imageOf(r, req.Image)
	if err != nil {
		return err
	}
	fork, err := req.fork(img)
	if err != nil {
		return err
	}
	given := givenName{prefixOf(r), name}
	if name != "" {
		release, err := s.reserve(r, given)
		if err != nil {
			return err
		}
		defer release()
	}
	result, err := s.view(r).Fork(r.Context(), fork)
	if err != nil {
		return err
	}
	made := result.Sandboxes[0]
	audit.From(r.Context()).Sandboxes = []string{made.ID}
	c := s.book.of(made)
	if given.name == "" {
		given.name = made.Hostname
		release, taken := s.reserve(r, given)
		if taken != nil {
			given.name = "" // the name is the id of the sandbox
		} else {
			defer release()
		}
	}
	err = s.book.change(c, func(s *state) { s.Status = created })
	if err == nil && given.name != "" {
		err = s.book.setName(c, given)
	}
	if err != nil {
		_ = result.Kill(made.ID) // fails only if the sandbox has ended
		return err
	}
	s.event("create", c, made)
	return face.WriteJSON(w, r, http.StatusCreated, struct {
		ID       string `json:"Id"`
		Warnings []string
	}{containerID(made.ID), []string{}})
}

// readCreate reads the body of a request to create a container, and refuses features that forkd
// lacks.
func readCreate(w http.ResponseWriter, r *http.Request) (req createRequest, err error) {
	var raw json.RawMessage
	if err := readJSON(w, r, &raw); err != nil {
		return req, err
	}
	if len(raw) == 0 {
		return req, face.BadRequest("request body: missing: want the container's configuration")
	}
	if err := decode("request body", raw, &req); err != nil {
		return req, err
	}
	var parts struct{ HostConfig, NetworkingConfig json.RawMessage }
	if err := decode("request body", raw, &parts); err != nil {
		return req, err
	}
	if err := onlyKnown("", raw, append([]string{"HostConfig", "NetworkingConfig"}, configFields...)...); err != nil {
		return req, err
	}
	if err := onlyKnown("HostConfig.", parts.HostConfig, hostFields...); err != nil {
		return req, err
	}
	if err := checkNetworks(parts.NetworkingConfig, req.HostConfig.NetworkMode); err != nil {
		return req, err
	}
	if err := checkHost(parts.HostConfig); err != nil {
		return req, err
	}
	if err := req.check(); err != nil {
		return req, err
	}
	ports, err := publications(&req.HostConfig, req.ExposedPorts)
	if err != nil {
		return req, err
	}
	return req, mayPublish(auth.From(r.Context()), ports, firstPort())
}

// checkPlatform refuses images of other platforms.
func checkPlatform(r *http.Request) error {
	switch p := r.URL.Query().Get("platform"); p {
	case "", "linux", "linux/amd64", "linux/x86_64", "amd64", "x86_64":
		return nil
	default:
		return unsupported("platform "+p, "a container has the processor of the host: want linux/amd64")
	}
}

// checkNetworks accepts an entry without settings for the network of the given mode: clients send
// such an entry together with the mode. It refuses all other entries.
func checkNetworks(p json.RawMessage, mode string) error {
	if err := onlyKnown("NetworkingConfig.", p, "EndpointsConfig"); err != nil || len(p) == 0 {
		return err
	}
	var networks struct {
		EndpointsConfig map[string]json.RawMessage
	}
	if err := decode("NetworkingConfig", p, &networks); err != nil {
		return err
	}
	for name, settings := range networks.EndpointsConfig {
		if name != mode && !(isDefaultNetwork(name) && isDefaultNetwork(mode)) || !allEmpty(settings) {
			return unsupported("NetworkingConfig.EndpointsConfig: network "+name, "name only that of HostConfig.NetworkMode, "+
				"without settings; "+insteadOf("EndpointsConfig"))
		}
	}
	return nil
}

// noNetwork is the network mode of a container without connections.
const noNetwork = "none"

func isDefaultNetwork(mode string) bool { return mode == "" || mode == "default" || mode == "bridge" }

// checkHost checks fields that clients send even if they do not use the feature. It refuses values
// that ask for the feature.
func checkHost(p json.RawMessage) error {
	var h struct {
		MemorySwappiness, PidsLimit               *int64
		ShmSize                                   int64
		Runtime, Isolation, CgroupnsMode, IpcMode string
		LogConfig                                 struct{ Config map[string]string }
	}
	if len(p) == 0 {
		return nil
	}
	if err := decode("HostConfig", p, &h); err != nil {
		return err
	}
	const omit = "omit it"
	switch {
	case h.MemorySwappiness != nil && *h.MemorySwappiness != -1 && *h.MemorySwappiness != 0:
		return unsupported("HostConfig.MemorySwappiness", omit)
	case h.PidsLimit != nil && *h.PidsLimit > 0:
		return unsupported("HostConfig.PidsLimit", omit)
	case h.ShmSize != 0:
		return unsupported("HostConfig.ShmSize", "/dev/shm of a container has half of the VM's memory: omit it")
	case h.Runtime != "" && h.Runtime != "runc" && h.Runtime != runtimeName:
		return unsupported("HostConfig.Runtime", omit)
	case h.Isolation != "" && h.Isolation != "default":
		return unsupported("HostConfig.Isolation", omit)
	case h.CgroupnsMode != "" && h.CgroupnsMode != "private":
		return unsupported("HostConfig.CgroupnsMode", omit)
	case len(h.LogConfig.Config) > 0:
		return unsupported("HostConfig.LogConfig.Config", "the daemon keeps the last MiB of output")
	case h.IpcMode != "" && h.IpcMode != "private":
		return unsupported("HostConfig.IpcMode", omit)
	}
	return nil
}

func (req *createRequest) check() error {
	h := &req.HostConfig
	if _, err := signalOf(req.StopSignal); err != nil && req.StopSignal != "" {
		return err
	}
	switch {
	case req.Image == "":
		return face.BadRequest("Image: missing: want the name of an image (docker images lists them)")
	case !isDefaultNetwork(h.NetworkMode) && h.NetworkMode != noNetwork:
		return unsupported("HostConfig.NetworkMode "+h.NetworkMode, insteadOf("NetworkMode"))
	case h.LogConfig.Type != "" && h.LogConfig.Type != "json-file":
		return unsupported("HostConfig.LogConfig.Type "+h.LogConfig.Type, "read the output with docker logs")
	case req.StopTimeout != nil && (*req.StopTimeout < 0 || *req.StopTimeout > maxStop):
		return face.BadRequest("StopTimeout: %d: want 0 to %d", *req.StopTimeout, maxStop)
	}
	if err := h.RestartPolicy.check(); err != nil {
		return err
	}
	// An image has no command, so an entrypoint or a command is the whole command.
	args := append(slices.Clone([]string(req.Entrypoint)), req.Cmd...)
	if len(args) > 0 && args[0] == "" {
		args = args[1:] // docker sends one empty word for --entrypoint ""
		req.Entrypoint = nil
	}
	if len(args) == 0 && req.TTY && req.OpenStdin {
		req.Cmd = words{"/bin/sh"}
	}
	for _, arg := range args {
		if strings.ContainsRune(arg, 0) {
			return face.BadRequest("Cmd: contains a NUL byte")
		}
	}
	user, err := account(req.User)
	req.User = user
	return err
}

// account converts a user of a request to an account of the guest. Docker also permits numbers, and
// a group after a colon. account refuses them, except for root, and for a group with the name of
// the account: the guest looks up names only, and an account has its own groups.
func account(user string) (string, error) {
	name, group, both := strings.Cut(user, ":")
	if name == "0" {
		name = "root"
	}
	if both && group != name && !(name == "root" && group == "0") {
		return "", unsupported("User "+user, "an account has its own groups: name only the account")
	}
	return name, nil
}

// fork returns the request for the container's sandbox.
func (req *createRequest) fork(img image) (fork sandbox.ForkRequest, err error) {
	labels := req.Labels
	limits, err := limitsOf(&req.HostConfig, vm.Limits{})
	if err != nil {
		return fork, err
	}
	own := spec{Config: req.config, Host: req.HostConfig, Image: img.ID}
	own.Config.Labels = nil // they are the labels of the sandbox, which can change
	note, err := json.Marshal(annotation{Docker: &own})
	if err != nil {
		return fork, err
	}
	if len(note) > ledger.MaxAnnotation {
		return fork, face.BadRequest("request body: the configuration has %d bytes: want at most %d", len(note),
			ledger.MaxAnnotation)
	}
	fork = sandbox.ForkRequest{Tag: img.snapshot, N: 1, Env: envOf(req.Env), Labels: labels, Annotation: note}
	if limits != (vm.Limits{}) {
		fork.Limits = &limits
	}
	if req.HostConfig.NetworkMode == noNetwork {
		setting := netclient.Isolated()
		fork.Network = &setting
	}
	return fork, nil
}

// maxFigure bounds the numbers in limits, so that sums do not overflow.
const maxFigure = 1 << 50

// limitsOf returns the limits that a request asks for. If a field of h is 0, the limit keeps its
// earlier value (had).
func limitsOf(h *host, had vm.Limits) (l vm.Limits, err error) {
	l = had
	for field, n := range map[string]int64{"Memory": h.Memory, "NanoCpus": h.NanoCPUs, "CpuShares": h.CPUShares,
		"CpuPeriod": h.CPUPeriod, "CpuQuota": h.CPUQuota} {
		if n < 0 && !(field == "CpuQuota" && n == -1) || n > maxFigure {
			return l, face.BadRequest("HostConfig.%s: %d: want a number from 0", field, n)
		}
	}
	if h.Memory > 0 {
		l.MemoryMiB, l.SwapMiB = toMiB(h.Memory), 0
	}
	switch {
	case h.MemorySwap == 0, h.MemorySwap == -1 && h.Memory == 0:
	case h.MemorySwap == -1:
		return l, unsupported("HostConfig.MemorySwap -1", "name the number of bytes")
	case h.MemorySwap < h.Memory || h.Memory == 0 || h.MemorySwap > maxFigure:
		return l, face.BadRequest("HostConfig.MemorySwap: %d: want the sum of memory and swap, together with Memory",
			h.MemorySwap)
	default:
		l.SwapMiB = toMiB(h.MemorySwap - h.Memory)
	}
	switch {
	case h.NanoCPUs > 0 && (h.CPUPeriod > 0 || h.CPUQuota > 0):
		return l, face.BadRequest("HostConfig.NanoCpus: excludes CpuPeriod and CpuQuota")
	case h.NanoCPUs > 0:
		l.CPUs = float64(h.NanoCPUs) / 1e9
	case h.CPUQuota > 0:
		period := h.CPUPeriod
		if period == 0 {
			period = 100_000
		}
		l.CPUs = float64(h.CPUQuota) / float64(period)
	}
	if h.CPUShares > 0 {
		const normal = 1024 // Docker's weight of a container without CpuShares
		l.CPUWeight = uint32(min(max(1, h.CPUShares*100/normal), 10_000))
	}
	return l, nil
}

func toMiB(bytes int64) uint64 { return (uint64(bytes) + 1<<20 - 1) >> 20 }

// readUpdate reads the body of a request to change a container.
func readUpdate(w http.ResponseWriter, r *http.Request) (h host, err error) {
	var raw json.RawMessage
	if err := readJSON(w, r, &raw); err != nil || len(raw) == 0 {
		return h, err
	}
	if err := onlyKnown("", raw, "Memory", "MemorySwap", "NanoCpus", "CpuShares", "CpuPeriod", "CpuQuota",
		"RestartPolicy"); err != nil {
		return h, err
	}
	if err := decode("request body", raw, &h); err != nil {
		return h, err
	}
	return h, h.RestartPolicy.check()
}
