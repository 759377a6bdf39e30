package v1

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"

	apidoc "github.com/forkd/forkd/api"
)

// documentYAML serves api/openapi.yaml.
func documentYAML(w http.ResponseWriter, _ *http.Request) error {
	p, err := apidoc.FS.ReadFile("openapi.yaml")
	return writeDocument(w, "application/yaml", p, err)
}

func documentJSON(w http.ResponseWriter, _ *http.Request) error {
	p, err := asJSON()
	return writeDocument(w, "application/json", p, err)
}

func documentPage(w http.ResponseWriter, _ *http.Request) error {
	p, err := asPage()
	// The page has inline styles only, and no scripts.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	return writeDocument(w, "text/html; charset=utf-8", p, err)
}

func writeDocument(w http.ResponseWriter, contentType string, p []byte, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(p) // fails only if the client has left
	return nil
}

var asJSON = sync.OnceValues(func() ([]byte, error) {
	p, err := apidoc.FS.ReadFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := yaml.Unmarshal(p, &doc); err != nil {
		return nil, fmt.Errorf("the API's document: %w", err)
	}
	return json.Marshal(doc)
})

//go:embed document.html
var pageTemplate string

var asPage = sync.OnceValues(func() ([]byte, error) {
	p, err := apidoc.FS.ReadFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	var doc page
	if err := yaml.Unmarshal(p, &doc); err != nil {
		return nil, fmt.Errorf("the API's document: %w", err)
	}
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, &doc)
	return out.Bytes(), err
})

// page holds the parts of the OpenAPI document that the HTML page shows.
type page struct {
	Info struct {
		Title, Version, Description string
	}
	Paths      inOrder[pathItem]
	Components struct {
		Parameters map[string]parameter
		Responses  map[string]message
		Schemas    inOrder[schema]
	}
}

type pathItem struct {
	Parameters             []parameter
	Get, Put, Post, Delete *operation
}

type operation struct {
	Summary, Description string
	Parameters           []parameter
	RequestBody          *message `yaml:"requestBody"`
	Responses            inOrder[message]
}

type parameter struct {
	Ref         string `yaml:"$ref"`
	Name, In    string
	Required    bool
	Description string
	Schema      schema
}

// message is a request body or a response.
type message struct {
	Ref         string `yaml:"$ref"`
	Description string
	Content     inOrder[struct{ Schema schema }]
}

type schema struct {
	Ref              string `yaml:"$ref"`
	Type             any
	Description      string
	Format, Pattern  string
	Const            any
	Enum             []any
	Default          any
	Minimum, Maximum *float64
	Required         []string
	Properties       inOrder[schema]
	Items            *schema
	AllOf            []schema `yaml:"allOf"`
	More             any      `yaml:"additionalProperties"`
}

// inOrder is a YAML mapping in the order of the document.
type inOrder[T any] []struct {
	Key   string
	Value T
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (o *inOrder[T]) UnmarshalYAML(n *yaml.Node) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		var entry struct {
			Key   string
			Value T
		}
		entry.Key = n.Content[i].Value
		if err := n.Content[i+1].Decode(&entry.Value); err != nil {
			return err
		}
		*o = append(*o, entry)
	}
	return nil
}

// Operations returns the operations of a path by method.
func (p pathItem) Operations() inOrder[*operation] {
	all := inOrder[*operation]{{"GET", p.Get}, {"PUT", p.Put}, {"POST", p.Post}, {"DELETE", p.Delete}}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Value == nil {
			all = slices.Delete(all, i, i+1)
		}
	}
	return all
}

// Resolve returns a parameter, or the parameter that it refers to.
func (d *page) Resolve(p parameter) parameter {
	if p.Ref != "" {
		return d.Components.Parameters[nameOf(p.Ref)]
	}
	return p
}

// Answer returns a response, or the response that it refers to.
func (d *page) Answer(m message) message {
	if m.Ref != "" {
		return d.Components.Responses[nameOf(m.Ref)]
	}
	return m
}

func nameOf(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// Link returns the name of the schema that s refers to. If s is a list, Link returns the name of
// the schema that its items refer to.
func (s schema) Link() string {
	if s.Items != nil {
		return s.Items.Link()
	}
	if s.Ref == "" {
		return ""
	}
	return nameOf(s.Ref)
}

// Kind describes the type of a value in words. It omits the name that Link returns.
func (s schema) Kind() string {
	switch types, several := s.Type.([]any); {
	case s.Items != nil && s.Items.Link() != "":
		return "array of"
	case s.Items != nil:
		return strings.TrimSpace("array of " + s.Items.Kind())
	case s.Ref != "":
		return ""
	case len(s.Enum) > 0:
		return "one of " + words(s.Enum, ", ")
	case several:
		return words(types, " or ")
	case s.Type != nil && s.Format != "":
		return fmt.Sprintf("%v (%s)", s.Type, s.Format)
	case s.Type != nil:
		return fmt.Sprint(s.Type)
	}
	return ""
}

// Bounds describes the valid values.
func (s schema) Bounds() string {
	var list []string
	for _, b := range []struct {
		word  string
		value *float64
	}{{"from", s.Minimum}, {"to", s.Maximum}} {
		if b.value != nil {
			list = append(list, fmt.Sprintf("%s %v", b.word, *b.value))
		}
	}
	if s.Default != nil {
		list = append(list, fmt.Sprintf("default %v", s.Default))
	}
	if s.Pattern != "" {
		list = append(list, s.Pattern)
	}
	return strings.Join(list, ", ")
}

// Needs reports whether a field is required.
func (s schema) Needs(field string) bool { return slices.Contains(s.Required, field) }

func words(list []any, between string) string {
	var texts []string
	for _, v := range list {
		texts = append(texts, fmt.Sprint(v))
	}
	return strings.Join(texts, between)
}
