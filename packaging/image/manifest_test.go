package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/forkd/forkd/internal/cli"
)

// container is the part of a manifest's container that depends on forkd.
type container struct {
	Image        string   `yaml:"image"`
	Args         []string `yaml:"args"`
	VolumeMounts []struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
	Startup   probe `yaml:"startupProbe"`
	Liveness  probe `yaml:"livenessProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Ports     []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	Lifecycle struct {
		PreStop probe `yaml:"preStop"`
	}
	grace           time.Duration // terminationGracePeriodSeconds of the pod
	SecurityContext struct {
		Privileged   bool
		Capabilities struct{ Add, Drop []string }
	} `yaml:"securityContext"`
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
	Exec    struct{ Command []string }
}

// pods returns the containers of all DaemonSets of a manifest, and the names of their volumes.
func pods(t *testing.T, text []byte) (containers []container, volumes map[string]bool) {
	t.Helper()
	volumes = map[string]bool{}
	for docs := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var object struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						Grace          int         `yaml:"terminationGracePeriodSeconds"`
						HostNetwork    bool        `yaml:"hostNetwork"`
						HostPID        bool        `yaml:"hostPID"`
						InitContainers []container `yaml:"initContainers"`
						Containers     []container
						Volumes        []struct{ Name string }
					}
				}
			}
		}
		err := docs.Decode(&object)
		if errors.Is(err, io.EOF) {
			return containers, volumes
		}
		if err != nil {
			t.Fatal(err)
		}
		pod := object.Spec.Template.Spec
		for i := range pod.Containers {
			pod.Containers[i].grace = time.Duration(pod.Grace) * time.Second
		}
		if pod.HostNetwork || pod.HostPID {
			t.Error("a pod is in namespaces of its node")
		}
		containers = append(containers, append(pod.InitContainers, pod.Containers...)...)
		for _, v := range pod.Volumes {
			volumes[v.Name] = true
		}
	}
}

// The DaemonSet runs this version's daemon with options that exist, and its probes use paths and
// commands that exist. It has the capabilities that docs/install.md names. kubeconform, in
// scripts/package, checks everything else.
func TestManifestFitsTheDaemon(t *testing.T) {
	text, err := os.ReadFile("../kubernetes/forkd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	root := cli.Command(cli.Stdio{})
	containers, volumes := pods(t, text)
	if len(containers) != 2 {
		t.Fatalf("found %d containers", len(containers))
	}
	for _, c := range containers {
		if c.Image != "forkd:"+root.Version {
			t.Errorf("image %s, want that of version %s", c.Image, root.Version)
		}
		if c.SecurityContext.Privileged || strings.Join(c.SecurityContext.Capabilities.Drop, " ") != "ALL" {
			t.Errorf("%+v: want no privileged container, and no capability but those it names", c.SecurityContext)
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("there is no volume %s", m.Name)
			}
		}
	}
	daemon := containers[1]
	cmd, args, err := root.Find(daemon.Args)
	if err == nil {
		err = cmd.ParseFlags(args)
	}
	if err != nil || cmd.Name() != "daemon" {
		t.Fatalf("forkd %s: %v", strings.Join(daemon.Args, " "), err)
	}
	if bind, _ := cmd.Flags().GetString("bind"); len(daemon.Ports) != 1 || bind != "0.0.0.0:8889" ||
		daemon.Ports[0].ContainerPort != 8889 {
		t.Errorf("it listens on %s, and the ports are %v", bind, daemon.Ports)
	}
	for _, probe := range []struct{ got, want string }{
		{daemon.Startup.HTTPGet.Path, "/healthz"}, {daemon.Readiness.HTTPGet.Path, "/readyz"},
		{daemon.Liveness.HTTPGet.Path, ""},
		{strings.Join(daemon.Liveness.Exec.Command, " "), "/usr/bin/forkd version --daemon"},
		{strings.Join(config("1").Healthcheck.Test, " "), "CMD /usr/bin/forkd version --daemon"},
		{strings.Join(daemon.Lifecycle.PreStop.Exec.Command, " "), "/usr/bin/forkd suspend --all --within=4m40s"},
	} {
		if probe.got != probe.want {
			t.Errorf("a probe or preStop asks for %q, want %s", probe.got, probe.want)
		}
	}
	for _, command := range [][]string{daemon.Liveness.Exec.Command, daemon.Lifecycle.PreStop.Exec.Command} {
		if cmd, args, err := root.Find(command[1:]); err != nil || cmd.ParseFlags(args) != nil {
			t.Errorf("forkd does not know %q: %v", command, err)
		}
	}
	suspend, _, _ := root.Find([]string{"suspend"})
	if within, err := suspend.Flags().GetDuration("within"); err != nil || within+20*time.Second != daemon.grace {
		t.Errorf("the suspensions have %v, the pod has %v: want 20 s more, for the daemon (%v)", within, daemon.grace, err)
	}
	document, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, capability := range daemon.SecurityContext.Capabilities.Add {
		if !strings.Contains(string(document), "--cap-add "+capability) {
			t.Errorf("docs/install.md starts the container without %s", capability)
		}
	}
	if n := len(regexp.MustCompile(`--cap-add [A-Z_]+`).FindAll(document,
		-1)); n != len(daemon.SecurityContext.Capabilities.Add) {
		t.Errorf("docs/install.md adds %d capabilities, the manifest %d", n, len(daemon.SecurityContext.Capabilities.Add))
	}
}

// The device plugin itself is not privileged.
func TestDevicePluginIsNotPrivileged(t *testing.T) {
	text, err := os.ReadFile("../kubernetes/device-plugin.yaml")
	if err != nil {
		t.Fatal(err)
	}
	containers, _ := pods(t, text)
	if len(containers) != 1 || containers[0].SecurityContext.Privileged ||
		len(containers[0].SecurityContext.Capabilities.Add) > 0 {
		t.Errorf("%+v", containers)
	}
}
