package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/cachedir"
)

// cluster is a Kubernetes API server with an operator. It has no kubelets, so this program makes the
// pods of the daemons, and copies the ConfigMap with the router's list of nodes into a file.
type cluster struct {
	*trial
	dir  string // has the kubeconfigs and the list of nodes
	port string // of the API server, at 127.0.0.1
}

// manifests are the objects of a user's cluster, relative to packaging/kubernetes.
var manifests = []string{"cluster/crds.yaml", "forkd.yaml", "cluster/operator.yaml", "cluster/router.yaml"}

// startCluster starts an API server, and an operator with the rights that its manifest gives it. Each
// host becomes a node.
func (t *trial) startCluster(ctx context.Context, hosts ...*host) (*cluster, error) {
	dir, err := os.MkdirTemp("", "twohosts-*")
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { os.RemoveAll(dir) })
	c := &cluster{trial: t, dir: dir}
	if err := c.startServer(ctx); err != nil {
		return nil, err
	}
	for _, name := range manifests {
		if _, err := c.kubectl(ctx, "", "apply", "-f", filepath.Join("packaging", "kubernetes", name)); err != nil {
			return nil, err
		}
	}
	for _, h := range hosts {
		if err := c.addNode(ctx, h); err != nil {
			return nil, err
		}
	}
	return c, c.startOperator(ctx, hosts[0].token)
}

// startServer starts the API server, and writes the kubeconfig of an administrator.
func (c *cluster) startServer(ctx context.Context) error {
	cache, err := cachedir.Dir()
	if err != nil {
		return err
	}
	address, err := freeAddress()
	if err != nil {
		return err
	}
	if _, c.port, err = net.SplitHostPort(address); err != nil {
		return err
	}
	server := exec.CommandContext(ctx, filepath.Join(cache, "kube", "apiserver"), "-dir", c.dir, "-port", c.port)
	if err := c.start(server); err != nil {
		return err
	}
	for range 600 {
		token, failed := os.ReadFile(filepath.Join(c.dir, "token"))
		if err = failed; err == nil {
			err = c.writeConfig("admin", string(token))
		}
		if err == nil {
			_, err = c.kubectl(ctx, "", "get", "--raw", "/readyz")
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	return fmt.Errorf("the API server is not ready: %w", err)
}

// writeConfig writes the kubeconfig of a user.
func (c *cluster) writeConfig(user, token string) error {
	named := func(key string, value map[string]any) []any {
		return []any{map[string]any{"name": "it", key: value}}
	}
	p, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "it",
		"clusters": named("cluster", map[string]any{"server": "https://127.0.0.1:" + c.port,
			"certificate-authority": filepath.Join(c.dir, "apiserver.crt")}),
		"users":    named("user", map[string]any{"token": token}),
		"contexts": named("context", map[string]any{"cluster": "it", "user": "it", "namespace": "forkd"}),
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, user), p, 0o600)
}

// kubectl runs kubectl as an administrator, and returns its output.
func (c *cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(c.python), "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "admin"))
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// addNode makes the node of a host, and the pod of its daemon, as the scheduler and a kubelet do.
func (c *cluster) addNode(ctx context.Context, h *host) error {
	address, port, err := net.SplitHostPort(strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		return err
	}
	pod := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod",
		"metadata": {"name": "forkd-%[1]s", "namespace": "forkd", "labels": {"app.kubernetes.io/name": "forkd"}},
		"spec": {"nodeName": "%[1]s", "serviceAccountName": "forkd", "containers": [
			{"name": "forkd", "image": "forkd", "ports": [{"name": "http", "containerPort": %[2]s}]}]}}`, h.name, port)
	node := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q}}`, h.name)
	status := fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %[1]q, "podIPs": [{"ip": %[1]q}]}}`, address)
	for _, object := range []string{node, pod} {
		if _, err := c.kubectl(ctx, object, "create", "-f", "-"); err != nil {
			return err
		}
	}
	_, err = c.kubectl(ctx, "", "patch", "pod", "forkd-"+h.name, "--subresource=status", "-p", status)
	return err
}

// startOperator starts the operator with the service account of its manifest. The daemons accept the
// given token.
func (c *cluster) startOperator(ctx context.Context, token string) error {
	file := filepath.Join(c.dir, "daemons")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return err
	}
	account, err := c.kubectl(ctx, "", "create", "token", "forkd-operator")
	if err != nil {
		return err
	}
	if err := c.writeConfig("operator", account); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(c.forkd), "forkd-operator"),
		"--kubeconfig", filepath.Join(c.dir, "operator"), "--namespace", "forkd", "--token-file", file,
		"--router-token-file", file, "--elect=false", "--interval", "1s")
	log, err := os.Create(filepath.Join(c.dir, "operator.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	return c.start(cmd)
}

// list returns the file with the router's list of nodes. Until ctx ends, the file follows the
// ConfigMap that the operator writes.
func (c *cluster) list(ctx context.Context) (string, error) {
	file := filepath.Join(c.dir, "nodes.json")
	follow := func() error {
		text, err := c.kubectl(ctx, "", "get", "configmap", "forkd-nodes", "-o", `jsonpath={.data.nodes\.json}`)
		if err == nil {
			err = os.WriteFile(file+".new", []byte(text), 0o600)
		}
		if err == nil {
			err = os.Rename(file+".new", file)
		}
		return err
	}
	for range 60 {
		err := follow()
		if err == nil {
			c.background.Go(func() {
				for ctx.Err() == nil {
					time.Sleep(time.Second)
					_ = follow() // the next attempt may succeed
				}
			})
			return file, nil
		}
		if ctx.Err() != nil {
			return "", err
		}
		time.Sleep(time.Second)
	}
	log, _ := os.ReadFile(filepath.Join(c.dir, "operator.log"))
	return "", fmt.Errorf("the operator has not written the list of nodes: %s", log)
}
