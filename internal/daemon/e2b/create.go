package e2b

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Default times of sandboxes.
const (
	defaultTimeout   = 300 * time.Second
	defaultTimeoutV1 = 15 * time.Second
)

// annotation holds E2B's properties of a sandbox. It is stored with every sandbox made by this
// package.
type annotation struct {
	Metadata map[string]string `json:"metadata,omitempty"`
	Timeout  time.Duration     `json:"timeout"` // set at creation, and again by auto-resume
	// Whether the sandbox is suspended, and not killed, at the end of its time.
	Pauses  bool  `json:"pauses"`
	Resumes bool  `json:"resumes"`           // whether traffic resumes the sandbox while it is suspended
	Private bool  `json:"private"`           // whether the sandbox's ports require the traffic token
	Offline *bool `json:"offline,omitempty"` // negation of allow_internet_access, if that was given
}

// annotationOf returns the record that this package keeps in a sandbox's Annotation. It also
// reports whether this package made the sandbox; if not, the record is empty.
func annotationOf(i sandbox.Info) (n annotation, own bool) {
	var mark struct {
		Timeout *time.Duration `json:"timeout"` // annotations of other packages do not have this field
	}
	if len(i.Annotation) == 0 || json.Unmarshal(i.Annotation, &mark) != nil || mark.Timeout == nil ||
		json.Unmarshal(i.Annotation, &n) != nil {
		return annotation{}, false
	}
	return n, true
}

// created describes a new sandbox in the answer to its creator.
type created struct {
	SandboxID    string  `json:"sandboxID"`
	TemplateID   string  `json:"templateID"`
	ClientID     string  `json:"clientID"` // E2B's node; the Python SDK requires the field
	EnvdVersion  string  `json:"envdVersion"`
	AccessToken  string  `json:"envdAccessToken"`
	TrafficToken string  `json:"trafficAccessToken"`
	Domain       *string `json:"domain"`
}

func (a *Server) createdOf(i sandbox.Info) created {
	c := created{SandboxID: i.ID, TemplateID: i.SnapshotTag, EnvdVersion: envdVersion,
		AccessToken: a.Keys.Token(accessToken, i.ID), TrafficToken: a.Keys.Token(trafficToken, i.ID)}
	if a.Domain.IsSet() {
		domain := a.Domain.Host()
		c.Domain = &domain
	}
	return c
}

// createRequest has the fields of all versions of the route.
type createRequest struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int64            `json:"timeout"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	AllowInternet *bool           `json:"allow_internet_access"`
	Network       *strictConfig   `json:"network"`
	MCP           json.RawMessage `json:"mcp"`
	IAM           json.RawMessage `json:"iam"`
	VolumeMounts  volumeMounts    `json:"volumeMounts"`
}

// guards matches the names of fields that could restrict a sandbox, or give it a secret. To ignore such a
// field would be unsafe, so a request with an unknown field of such a name is refused. Other unknown
// fields are ignored, because newer SDKs send them.
var guards = regexp.MustCompile("(?i)network|internet|gress|firewall|proxy|dns|allow|deny|secret|credential|polic|iam")

// UnmarshalJSON implements json.Unmarshaler.
func (req *createRequest) UnmarshalJSON(p []byte) error {
	type plain createRequest
	var fields map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(p, (*plain)(req)), json.Unmarshal(p, &fields)); err != nil {
		return err
	}
	for name, value := range fields {
		known := func(k string) bool { return strings.EqualFold(k, name) } // as package json compares names
		if present(value) && guards.MatchString(name) && !slices.ContainsFunc(
			[]string{"network", "allow_internet_access", "iam"}, known) {
			return fmt.Errorf("%.100q: this forkd does not know the field, which could restrict the sandbox: omit it", name)
		}
	}
	return nil
}

// present reports whether a field is in the request and not null.
func present(field json.RawMessage) bool { return len(field) > 0 && string(field) != "null" }

func (req *createRequest) check() error {
	switch {
	case req.TemplateID == "":
		return face.BadRequest("templateID: want the tag of a snapshot ('forkd images' lists them)")
	case present(req.MCP):
		return unsupported("mcp", "start the gateway in the recipe's warm-up")
	case present(req.IAM):
		return unsupported("iam", "give the sandbox a secret (docs/network.md)")
	case req.AutoPauseMemory != nil && !*req.AutoPauseMemory && req.AutoPause:
		return unsupported("autoPauseMemory: false", "a paused sandbox keeps its memory")
	}
	return nil
}

func (a *Server) createV1(w http.ResponseWriter, r *http.Request) error {
	return a.createAs(w, r, defaultTimeoutV1)
}

func (a *Server) create(w http.ResponseWriter, r *http.Request) error {
	return a.createAs(w, r, defaultTimeout)
}

func (a *Server) createAs(w http.ResponseWriter, r *http.Request, def time.Duration) error {
	var req createRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	if err := req.check(); err != nil {
		return err
	}
	timeout, err := seconds(req.Timeout, def)
	if err != nil {
		return err
	}
	tag, err := a.existing(r, req.TemplateID)
	if err != nil {
		return err
	}
	volumes, err := req.VolumeMounts.mounts()
	if err != nil {
		return err
	}
	n := annotation{Metadata: req.Metadata, Timeout: timeout, Pauses: req.AutoPause, Resumes: req.AutoResume.Enabled}
	fork := sandbox.ForkRequest{Tag: tag, N: 1, Env: req.EnvVars, TTL: max(timeout, time.Nanosecond),
		ExpirySuspends: req.AutoPause, Volumes: volumes}
	if req.AllowInternet != nil {
		offline := !*req.AllowInternet
		n.Offline = &offline
	}
	if req.Network != nil || n.Offline != nil {
		if req.Network == nil {
			req.Network = &strictConfig{}
		}
		if fork.Network, err = a.settingFor(r, tag, &req.Network.networkConfig, n.Offline); err != nil {
			return err
		}
		n.Private = req.Network.Public != nil && !*req.Network.Public
	}
	if fork.Annotation, err = json.Marshal(n); err != nil {
		return err
	}
	if len(fork.Annotation) > ledger.MaxAnnotation {
		return face.BadRequest("metadata: %d bytes: want at most %d", len(fork.Annotation), ledger.MaxAnnotation)
	}
	start := time.Now()
	result, err := a.view(r).Fork(r.Context(), fork)
	a.Traces.Fork(r, start, tag, result, err)
	if err != nil {
		return err
	}
	made := result.Sandboxes[0]
	audit.From(r.Context()).Sandboxes = []string{made.ID}
	return face.WriteJSON(w, r, http.StatusCreated, a.createdOf(made))
}

// tagOf returns the tag of the snapshot that stands for a template. The argument is the template's
// id or name, perhaps followed by a colon and one of E2B's tags. tagOf does not know the tags that
// clients have assigned; see Tags.
func tagOf(template string) (string, error) {
	if team, _, ok := strings.Cut(template, "/"); ok {
		return "", face.BadRequest(
			"templateID: %.100q: forkd's templates have no teams before their names: remove %.100q", template, team+"/")
	}
	name, of, tagged := strings.Cut(template, ":")
	tag := snapshotTag(name, of)
	if tagged && of == "" {
		return "", face.BadRequest("templateID: %.100q: want a tag after the colon", template)
	}
	if err := snapshot.CheckTag(tag); err != nil {
		return "", face.BadRequest("templateID: %v", err)
	}
	return tag, nil
}

// existing() is like tagOf, but for a template that should exist. It also knows the tags that
// clients have assigned. E2B converts names to lower case. So if no snapshot has exactly the tag
// that tagOf returns, existing() searches without regard to the case of letters. If exactly one
// snapshot matches, it returns the tag of that snapshot.
func (a *Server) existing(r *http.Request, template string) (string, error) {
	tag, err := tagOf(template)
	if err != nil {
		return "", err
	}
	name, of, _ := strings.Cut(template, ":")
	if assigned := a.tagger(r).find(name, cmp.Or(of, defaultTag)); assigned != "" {
		return assigned, nil
	}
	return a.named(r, tag), nil
}

// named() finds the tag of a snapshot. If no snapshot has exactly the given tag, it ignores the
// case of letters. If exactly one snapshot then matches, it returns that snapshot's tag. In all
// other cases it returns the given tag.
func (a *Server) named(r *http.Request, tag string) string {
	if _, err := a.view(r).Snapshot(tag); err == nil {
		return tag
	}
	found := ""
	for _, i := range a.view(r).Snapshots() {
		switch {
		case !strings.EqualFold(i.Tag, tag):
		case found != "":
			return tag
		default:
			found = i.Tag
		}
	}
	return cmp.Or(found, tag)
}
