package record

import (
	"fmt"
	"time"
)

// TemplateTags is the record of the tags that clients of E2B's API have assigned to templates.
type TemplateTags struct {
	Tags []TemplateTag `json:"tags"` // at least one
}

// TemplateTag is one tag of a template.
type TemplateTag struct {
	Name     string `json:"name"` // NAME:TAG
	Snapshot string `json:"snapshot"`
	// ID is the id of the snapshot. A later snapshot with the same tag does not get this template
	// tag.
	ID       string    `json:"id"`
	Who      string    `json:"who"` // Principal.Who of the client that assigned the tag
	Assigned time.Time `json:"assigned"`
}

// tagsFile is the content of the record.
type tagsFile struct {
	Version int `json:"version"`
	TemplateTags
}

// EncodeTags returns the bytes of the record of template tags. It refuses a record that ParseTags
// would refuse.
func EncodeTags(t *TemplateTags) ([]byte, error) {
	if f := t.check(); f != nil {
		return nil, f
	}
	return encode(tagsFile{Version, *t})
}

// ParseTags decodes and checks the record of template tags. Errors are *Error with the given path.
// The file at this path is not opened.
func ParseTags(path string, p []byte) (*TemplateTags, error) {
	var now tagsFile
	var old struct{} // no forkd has written version 0
	if err := parse(path, p, &now, &old, func() {}); err != nil {
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.TemplateTags, nil
}

func (t *TemplateTags) check() *fault {
	if len(t.Tags) == 0 {
		return wrong("tags", "empty: %s", otherForkd)
	}
	for i, tag := range t.Tags {
		for _, f := range []struct{ name, value string }{{"name", tag.Name}, {"snapshot", tag.Snapshot}, {"id", tag.ID},
			{"who", tag.Who}} {
			if f.value == "" {
				return wrong(fmt.Sprintf("tags[%d].%s", i, f.name), "empty: %s", otherForkd)
			}
		}
	}
	return nil
}
