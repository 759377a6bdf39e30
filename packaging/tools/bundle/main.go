// Command bundle converts the containers of forkd's DaemonSet to bundles, as containerd would. A
// container runtime (runc, crun) can then run them without Kubernetes, with exactly the rights that
// the manifest grants.
//
//	go run ./bundle MANIFEST.yaml DIR
//
// MANIFEST is decoded strictly: a field that Kubernetes does not know is an error. For each
// container, DIR/CONTAINER becomes a bundle (opencontainers/runtime-spec, bundle.md) whose root
// file system is DIR/rootfs. DIR/volumes has the volumes, with the same modes as with kubelet. The
// caller adds the secrets. The resource squat.ai/kvm stands for this host's own devices. Probes,
// limits and the network are omitted.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: bundle MANIFEST.yaml DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

func run(manifest, dir string) error {
	text, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	set, err := decode(text)
	if err != nil {
		return fmt.Errorf("%s: %w", manifest, err)
	}
	pod := set.Spec.Template.Spec
	for _, v := range pod.Volumes {
		if err := makeVolume(filepath.Join(dir, "volumes", v.Name), v); err != nil {
			return err
		}
	}
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		spec, err := specOf(c, dir)
		if err != nil {
			return fmt.Errorf("container %s: %w", c.Name, err)
		}
		text, err := json.MarshalIndent(spec, "", "\t")
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, c.Name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, c.Name, "config.json"), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// decode checks all objects of a manifest, and returns the manifest's DaemonSet.
func decode(text []byte) (set *appsv1.DaemonSet, err error) {
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return nil, err
		}
		var object any
		switch kind.Kind {
		case "Namespace":
			object = &corev1.Namespace{}
		case "ServiceAccount":
			object = &corev1.ServiceAccount{}
		case "Service":
			object = &corev1.Service{}
		case "NetworkPolicy":
			object = &networkingv1.NetworkPolicy{}
		case "DaemonSet":
			set = &appsv1.DaemonSet{}
			object = set
		default:
			return nil, fmt.Errorf("unknown kind %q", kind.Kind)
		}
		if err := yaml.UnmarshalStrict(doc, object); err != nil {
			return nil, fmt.Errorf("%s: %w", kind.Kind, err)
		}
	}
	if set == nil {
		return nil, errors.New("it has no DaemonSet")
	}
	return set, nil
}

// makeVolume makes a volume as kubelet does (pkg/volume/{hostpath,emptydir,secret}).
func makeVolume(path string, v corev1.Volume) error {
	mode := os.FileMode(0o755)
	switch {
	case v.HostPath != nil:
	case v.EmptyDir != nil:
		mode = 0o777
	case v.Secret != nil:
		mode = 0o777 | os.ModeSticky
	default:
		return fmt.Errorf("volume %s: of no kind that this program knows", v.Name)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// specOf converts a container as containerd's CRI plugin does. It supports only the fields that
// these containers use.
func specOf(c corev1.Container, dir string) (*specs.Spec, error) {
	args := append(c.Command, c.Args...)
	if len(c.Command) == 0 {
		args = append([]string{"/usr/bin/forkd"}, c.Args...) // the image's entrypoint
	}
	// Kubernetes replaces references to variables in arguments.
	for _, v := range c.Env {
		if v.ValueFrom == nil || v.ValueFrom.FieldRef == nil || v.ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
			return nil, fmt.Errorf("variable %s: want the name of the node", v.Name)
		}
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "$("+v.Name+")", "node")
		}
	}
	s := c.SecurityContext
	if s == nil || s.Capabilities == nil || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" {
		return nil, errors.New("want capabilities to drop ALL")
	}
	if s.Privileged != nil && *s.Privileged || s.SeccompProfile == nil ||
		s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		return nil, errors.New("want a container that is not privileged, with the seccomp profile RuntimeDefault")
	}
	caps := []string{}
	for _, name := range s.Capabilities.Add {
		caps = append(caps, "CAP_"+string(name))
	}
	options := []oci.SpecOpts{
		oci.WithRootFSPath(filepath.Join(dir, "rootfs")),
		oci.WithProcessArgs(args...),
		oci.WithEnv([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"FORKD_CACHE=/var/cache/forkd"}),
		oci.WithCapabilities(caps),
		seccomp.WithDefaultProfile(),
		oci.WithHostname("pod"),
	}
	if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		options = append(options, oci.WithNewPrivileges)
	}
	if s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem {
		options = append(options, oci.WithRootFSReadonly())
	}
	var mounts []specs.Mount
	for _, m := range c.VolumeMounts {
		how := []string{"rbind", "rprivate", "rw"}
		if m.ReadOnly {
			how[2] = "ro"
		}
		mounts = append(mounts, specs.Mount{Destination: m.MountPath, Type: "bind",
			Source: filepath.Join(dir, "volumes", m.Name), Options: how})
	}
	options = append(options, oci.WithMounts(mounts))
	if _, ok := c.Resources.Limits["squat.ai/kvm"]; ok {
		for _, device := range []string{"/dev/kvm", "/dev/userfaultfd"} {
			if _, err := os.Stat(device); err == nil {
				options = append(options, oci.WithLinuxDevice(device, "rwm"))
			}
		}
	}
	ctx := namespaces.WithNamespace(context.Background(), "k8s.io")
	spec, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: "forkd-" + c.Name}, options...)
	if err == nil {
		spec.Version = "1.0.2" // the newest version that crun of Debian 12 knows
		spec.Root.Path, err = filepath.Abs(filepath.Join(dir, "rootfs"))
	}
	for i := range spec.Mounts {
		if strings.HasPrefix(spec.Mounts[i].Source, dir) && err == nil {
			spec.Mounts[i].Source, err = filepath.Abs(spec.Mounts[i].Source)
		}
	}
	return spec, err
}
