package main

import (
	"flag"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/forkd/forkd/internal/cli"
)

// containers returns the container of the Deployment in a manifest, and its volumes.
func containers(t *testing.T, name string) (corev1.Container, map[string]corev1.Volume) {
	t.Helper()
	file, err := os.Open("../../../packaging/kubernetes/cluster/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for objects := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var d appsv1.Deployment
		if err := objects.Decode(&d); err != nil {
			t.Fatal(err) // io.EOF if there is no Deployment
		}
		if d.Kind != "Deployment" {
			continue
		}
		pod := d.Spec.Template.Spec
		volumes := map[string]corev1.Volume{}
		for _, v := range pod.Volumes {
			volumes[v.Name] = v
		}
		if len(pod.Containers) != 1 || *pod.SecurityContext.RunAsNonRoot != true {
			t.Fatalf("%+v", pod)
		}
		return pod.Containers[0], volumes
	}
}

// The manifests run the operator and the router with flags that exist, and the two agree about the
// names of the ConfigMap and of files.
func TestManifests(t *testing.T) {
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	cfg := configure(f)
	operator, secrets := containers(t, "operator.yaml")
	if err := f.Parse(operator.Args); err != nil || f.NArg() > 0 {
		t.Fatal(err, f.Args())
	}
	dir := operator.VolumeMounts[0]
	if cfg.TokenFile != dir.MountPath+"/token" || secrets[dir.Name].Secret == nil || !cfg.Elect {
		t.Errorf("%+v with %+v", cfg, operator.VolumeMounts)
	}
	router, volumes := containers(t, "router.yaml")
	root := cli.Command(cli.Stdio{})
	cmd, args, err := root.Find(router.Args)
	if err == nil {
		err = cmd.ParseFlags(args)
	}
	if err != nil || cmd.Name() != "router" {
		t.Fatalf("forkd %s: %v", strings.Join(router.Args, " "), err)
	}
	if router.Image != "forkd:"+root.Version || operator.Image != "forkd-operator:"+root.Version {
		t.Errorf("the images are %s and %s, the version is %s", router.Image, operator.Image, root.Version)
	}
	list, _ := cmd.Flags().GetString("nodes")
	for _, m := range router.VolumeMounts {
		v := volumes[m.Name]
		switch {
		case v.ConfigMap != nil && v.ConfigMap.Name == cfg.ConfigMap && list == m.MountPath+"/nodes.json":
		case v.Secret != nil && cfg.RouterTokenFile == m.MountPath+"/token":
		default:
			t.Errorf("%+v is mounted at %s; the list is %s, the operator has %+v", v, m.MountPath, list, cfg)
		}
	}
}

// The manifests for agent-sandbox run the operator with flags that exist, and with the files that
// they mount.
func TestAgentSandboxManifests(t *testing.T) {
	text, err := os.ReadFile("../../../packaging/kubernetes/agent-sandbox/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	cfg := configure(f)
	if cfg.AgentSandbox || cfg.AgentSandboxBind != "" {
		t.Errorf("agent-sandbox is on by default: %+v", cfg)
	}
	args := regexp.MustCompile(`--agent-sandbox[^"\s}]*`).FindAllString(string(text), -1)
	if err := f.Parse(args); err != nil || len(args) != 4 || !cfg.AgentSandbox {
		t.Fatal(args, err)
	}
	mount := regexp.MustCompile(`mountPath: ([^,]+)`).FindStringSubmatch(string(text))
	if cfg.AgentSandboxCert != mount[1]+"/tls.crt" || cfg.AgentSandboxKey != mount[1]+"/tls.key" ||
		!strings.HasSuffix(cfg.AgentSandboxBind, ":8443") {
		t.Errorf("%+v with %s", cfg, mount[1])
	}
}
