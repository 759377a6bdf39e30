package operator

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// pythonEnv is the path of a Python with the package k8s-agent-sandbox. scripts/kube installs it.
const pythonEnv = "FORKD_AGENT_SANDBOX_PYTHON"

// face is agent-sandbox's router of an operator.
type face struct {
	url  string
	ca   string // file
	http *http.Client
}

// agentSandbox makes the operator of a world act on the resources of agent-sandbox. It must be
// called before start.
func (w *world) agentSandbox() *face {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	// The certificate of package httptest is for 127.0.0.1 and is its own authority.
	server := httptest.NewTLSServer(http.NotFoundHandler())
	server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	f := &face{url: "https://" + address, ca: filepath.Join(dir, "cert.pem")}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		"key.pem": {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	w.t.Cleanup(transport.CloseIdleConnections)
	f.http = &http.Client{Transport: transport}
	w.change = func(c *Config) {
		c.AgentSandbox, c.AgentSandboxBind, c.AgentSandboxCert, c.AgentSandboxKey = true, address, f.ca,
			filepath.Join(dir, "key.pem")
	}
	return f
}

// user makes a service account with the role for users of agent-sandbox in the test's namespace, and
// returns its token.
func (w *world) user(name string) string {
	w.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.create(account)
	w.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "forkd-agent-sandbox-user"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: w.namespace, Name: name}}})
	token := &authv1.TokenRequest{}
	if err := w.admin.SubResource("token").Create(w.t.Context(), account, token); err != nil {
		w.t.Fatal(err)
	}
	return token.Status.Token
}

// object decodes a manifest into the test's namespace.
func (w *world) object(text string) *unstructured.Unstructured {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096).Decode(o); err != nil {
		w.t.Fatal(err)
	}
	o.SetNamespace(w.namespace)
	return o
}

// template makes a SandboxTemplate and a SandboxWarmPool of the same name.
func (w *world) template(name, annotations, more string) {
	w.t.Helper()
	w.create(w.object(fmt.Sprintf(`
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: %s, annotations: {%s}}
spec:
  podTemplate:
    spec:
      containers:
      - name: python-runtime
        image: registry.example/python-runtime-sandbox:latest
        ports: [{containerPort: 8888}]
        readinessProbe: {httpGet: {path: /, port: 8888}, periodSeconds: 1}
        resources: {requests: {cpu: 250m}}
        env:
        - {name: COLOR, value: blue}
        - {name: SANDBOX_BASE_DIR, value: %q}
      restartPolicy: OnFailure
%s`, name, annotations, filepath.Join(w.t.TempDir(), "base"), more)))
	w.pool(name, name)
}

func (w *world) pool(name, template string) {
	w.t.Helper()
	w.create(w.object(fmt.Sprintf(`
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: %s}
spec: {replicas: 0, sandboxTemplateRef: {name: %s}}`, name, template)))
}

// The published client of agent-sandbox, unmodified, claims sandboxes of forkd and uses them, with
// the rights of forkd-agent-sandbox-user in one namespace.
func TestAgentSandboxClient(t *testing.T) {
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Skip(pythonEnv + " is not set: run scripts/kube")
	}
	w := newWorld(t, "claims", "a", "b")
	f := w.agentSandbox()
	w.start()
	w.snapshot()
	w.template("pool", "forkd.dev/snapshot: py", "")
	w.template("free", "forkd.dev/snapshot: py, forkd.dev/network: none", "  envVarsInjectionPolicy: Overrides")
	w.template("no-snapshot", "", "")
	w.pool("no-template", "none")
	token := w.user("agent")
	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: w.config.Host, CertificateAuthority: w.config.CAFile}
	config.AuthInfos["test"] = &api.AuthInfo{Token: token}
	config.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "testdata/agent_sandbox.py")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+file, "ROUTER="+f.url, "CA="+f.ca, "TOKEN="+token,
		"NAMESPACE="+w.namespace)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "claim: ") {
		_ = cmd.Wait()
		t.Fatalf("the client: %q, %s", lines.Text(), problems.String())
	}
	claim := strings.TrimPrefix(lines.Text(), "claim: ")
	in := w.reaches(claim, v1alpha1.Running)
	made := w.made()
	if s := made[in.Status.ID]; len(made) != 1 || s.Labels["task"] != "seven" || s.Network != "public" ||
		s.Labels[nameLabel] != claim {
		t.Errorf("%+v", made)
	}
	if _, err := io.WriteString(input, "end\n"); err != nil {
		t.Error(err)
	}
	if !lines.Scan() || lines.Text() != "ended" {
		t.Errorf("the client: %q", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, problems.String())
	}
	w.until("everything is deleted", func() string {
		if len(w.made()) != 0 {
			return fmt.Sprintf("%+v", w.made())
		}
		return ""
	})
	w.gone(in)
}

// agentStatus returns the conditions of an object of agent-sandbox by type, and one text about all
// of them.
func (w *world) agentStatus(group, kind, name string) (map[string]metav1.Condition, string) {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(group + "/v1beta1")
	o.SetKind(kind)
	if !w.get(name, o) {
		return nil, "it does not exist"
	}
	var got struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	if text, ok := o.Object["status"].(map[string]any); ok {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(text, &got); err != nil {
			w.t.Fatal(err)
		}
	}
	all := map[string]metav1.Condition{}
	for _, c := range got.Conditions {
		all[c.Type] = c
	}
	return all, fmt.Sprintf("%+v", got.Conditions)
}

// post sends a command to agent-sandbox's router, and returns the status and the answer.
func (w *world) post(f *face, token, namespace, name, command string, more ...string) (int, string) {
	w.t.Helper()
	body, err := json.Marshal(map[string]any{"command": command})
	if err != nil {
		w.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, f.url+"/execute", bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("X-Sandbox-ID", name)
	req.Header.Set("X-Sandbox-Namespace", namespace)
	for _, h := range more {
		key, value, _ := strings.Cut(h, ": ")
		req.Header.Set(key, value)
	}
	resp, err := f.http.Do(req)
	if err != nil {
		return 0, err.Error() // the operator may be starting
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Error(err)
	}
	return resp.StatusCode, string(text)
}

// direct is a Sandbox of agent-sandbox without a claim.
const direct = `
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: %s, annotations: {forkd.dev/snapshot: py}}
spec:
  podTemplate:
    spec:
      containers: [{name: main, image: any, env: [{name: SANDBOX_BASE_DIR, value: %q}]}]`

// A Sandbox without a claim is suspended and resumed. Only users with rights in its namespace reach
// it, and a user of one namespace learns nothing about another.
func TestAgentSandboxAccess(t *testing.T) {
	w := newWorld(t, "access", "a")
	f := w.agentSandbox()
	w.start()
	w.snapshot()
	other := newWorld(t, "access-other")
	token, foreign := w.user("agent"), other.user("agent")
	box := w.object(fmt.Sprintf(direct, "one", t.TempDir()))
	w.create(box)
	ready := func(status metav1.ConditionStatus, reason string) func() string {
		return func() string {
			all, text := w.agentStatus("agents.x-k8s.io", "Sandbox", "one")
			if c := all["Ready"]; c.Status != status || c.Reason != reason {
				return text
			}
			return ""
		}
	}
	w.until("ready", ready(metav1.ConditionTrue, "DependenciesReady"))
	all, text := w.agentStatus("agents.x-k8s.io", "Sandbox", "one")
	if c := all["FullyApplied"]; c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "image") {
		t.Error(text)
	}
	w.until("the router answers", func() string {
		if status, text := w.post(f, token, w.namespace, "one", "echo kept >state"); status != http.StatusOK {
			return fmt.Sprint(status, text)
		}
		return ""
	})
	for _, c := range []struct {
		what, token, namespace, name string
		status                       int
		headers                      []string
	}{
		{"no token", "", w.namespace, "one", 401, nil},
		{"an unknown token", "nobody", w.namespace, "one", 401, nil},
		{"a token of the daemons", apirig.Token, w.namespace, "one", 401, nil},
		{"a user of another namespace", foreign, w.namespace, "one", 403, nil},
		{"the same about nothing", foreign, w.namespace, "nothing", 403, nil},
		{"the same without a namespace", foreign, "", "one", 403, nil},
		{"an unknown sandbox", token, w.namespace, "nothing", 404, nil},
		{"the own namespace has no such sandbox", foreign, other.namespace, "one", 404, nil},
		{"another uid", token, w.namespace, "one", 404, []string{"X-Sandbox-UID: 1"}},
		{"no sandbox", token, w.namespace, "", 400, nil},
		{"a path as the sandbox", token, w.namespace, "../one", 400, nil},
		{"an address", token, w.namespace, "one", 400, []string{"X-Sandbox-Pod-IP: 169.254.169.254"}},
		{"another port", token, w.namespace, "one", 400, []string{"X-Sandbox-Port: 22"}},
	} {
		if status, text := w.post(f, c.token, c.namespace, c.name, "id", c.headers...); status != c.status {
			t.Errorf("%s: %d %s", c.what, status, text)
		}
	}
	w.agentMode(box, "Suspended")
	w.until("suspended", ready(metav1.ConditionFalse, "SandboxSuspended"))
	w.reaches("one", v1alpha1.Suspended)
	w.until("the condition Suspended", func() string {
		all, text := w.agentStatus("agents.x-k8s.io", "Sandbox", "one")
		if all["Suspended"].Status != metav1.ConditionTrue {
			return text
		}
		return ""
	})
	if status, text := w.post(f, token, w.namespace, "one", "id"); status != 503 || !strings.Contains(text, "Suspended") {
		t.Errorf("%d %s", status, text)
	}
	w.agentMode(box, "Running")
	w.until("resumed", ready(metav1.ConditionTrue, "DependenciesReady"))
	status, text := w.post(f, token, w.namespace, "one", "cat state")
	if status != 200 || !strings.Contains(text, "kept") {
		t.Errorf("%d %s", status, text)
	}
	// The sandbox ends with its object.
	w.delete(box)
	w.gone(box)
	if len(w.made()) != 0 {
		t.Errorf("%+v are left", w.made())
	}
}

// An id in a status does not lead to the sandbox of another object.
func TestAgentSandboxForeignID(t *testing.T) {
	w := newWorld(t, "foreign", "a")
	f := w.agentSandbox()
	w.start()
	w.snapshot()
	w.sandbox("victim")
	victim := w.reaches("victim", v1alpha1.Running)
	token := w.user("agent")
	w.create(w.object(fmt.Sprintf(direct, "thief", t.TempDir())))
	w.until("the router answers", func() string {
		if status, text := w.post(f, token, w.namespace, "thief", "id"); status != http.StatusOK {
			return fmt.Sprint(status, text)
		}
		return ""
	})
	w.kill() // the operator would correct the status
	thief := w.reaches("thief", v1alpha1.Running)
	thief.Status.ID = victim.Status.ID
	if err := w.admin.Status().Update(t.Context(), thief); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.until("the router refuses", func() string {
		if status, text := w.post(f, token, w.namespace, "thief", "id"); status != 502 && status != 503 {
			return fmt.Sprint(status, text)
		}
		return ""
	})
}

// agentMode sets the operating mode of a Sandbox of agent-sandbox.
func (w *world) agentMode(box *unstructured.Unstructured, mode string) {
	w.t.Helper()
	w.until("mode", func() string {
		w.get(box.GetName(), box)
		if err := unstructured.SetNestedField(box.Object, mode, "spec", "operatingMode"); err != nil {
			return err.Error()
		}
		if err := w.admin.Update(w.t.Context(), box); err != nil {
			return err.Error()
		}
		return ""
	})
}

// A Sandbox that forkd cannot honour gets no sandbox, but a condition that names the field.
func TestAgentSandboxRefusals(t *testing.T) {
	w := newWorld(t, "refusals", "a")
	w.agentSandbox()
	w.start()
	w.snapshot()
	for name, c := range map[string]struct{ notes, spec, reason string }{
		"no-annotation": {"", "podTemplate: {spec: {containers: [{name: a, image: b}]}}", "forkd.dev/snapshot"},
		"privileged": {"forkd.dev/snapshot: py",
			"podTemplate: {spec: {containers: [{name: a, securityContext: {privileged: true}}]}}", "securityContext"},
		"user": {"forkd.dev/snapshot: py",
			"podTemplate: {spec: {securityContext: {runAsUser: 1000}, containers: [{name: a}]}}", "spec.securityContext"},
		"command": {"forkd.dev/snapshot: py", "podTemplate: {spec: {containers: [{name: a, command: [b]}]}}", "command"},
		"secret": {"forkd.dev/snapshot: py",
			"podTemplate: {spec: {containers: [{name: a, env: [{name: A, valueFrom: {}}]}]}}", "valueFrom"},
		"volume": {"forkd.dev/snapshot: py", "podTemplate: {spec: {containers: [{name: a}]}}, volumeClaimTemplates: [{}]",
			"volumeClaimTemplates"},
		"service": {"forkd.dev/snapshot: py", "podTemplate: {spec: {containers: [{name: a}]}}, service: true", "service"},
		"account": {"forkd.dev/snapshot: py",
			"podTemplate: {spec: {automountServiceAccountToken: true, containers: [{name: a}]}}", "automountServiceAccountToken"},
		"two": {"forkd.dev/snapshot: py", "podTemplate: {spec: {containers: [{name: a}, {name: b}]}}", "2 entries"},
		"open": {"forkd.dev/snapshot: py, forkd.dev/network: open", "podTemplate: {spec: {containers: [{name: a}]}}",
			"forkd.dev/network"},
		"new-field": {"forkd.dev/snapshot: py", "podTemplate: {spec: {containers: [{name: a}]}}, fieldOfTomorrow: 1",
			"fieldOfTomorrow"},
		"label": {"forkd.dev/snapshot: py",
			"podTemplate: {metadata: {labels: {kube-uid: x}}, spec: {containers: [{name: a}]}}", "kube-"},
	} {
		w.create(w.object(fmt.Sprintf("apiVersion: agents.x-k8s.io/v1beta1\nkind: Sandbox\n"+
			"metadata: {name: %s, annotations: {%s}}\nspec: {%s}", name, c.notes, c.spec)))
		w.until(name, func() string {
			all, text := w.agentStatus("agents.x-k8s.io", "Sandbox", name)
			if r := all["Ready"]; r.Status != metav1.ConditionFalse || r.Reason != "InvalidConfiguration" ||
				!strings.Contains(r.Message, c.reason) {
				return text
			}
			return ""
		})
	}
	// A Sandbox (forkd.dev) of the same name belongs to somebody else.
	w.sandbox("mine")
	w.reaches("mine", v1alpha1.Running)
	taken := w.object(fmt.Sprintf(direct, "mine", t.TempDir()))
	w.create(taken)
	w.until("a taken name", func() string {
		all, text := w.agentStatus("agents.x-k8s.io", "Sandbox", "mine")
		if !strings.Contains(all["Ready"].Message, "another name") {
			return text
		}
		return ""
	})
	w.delete(taken)
	w.gone(taken)
	if len(w.made()) != 1 {
		t.Errorf("%+v: want only the sandbox of the Sandbox mine", w.made())
	}
	w.reaches("mine", v1alpha1.Running)
}
