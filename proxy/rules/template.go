package rules

import (
	"fmt"
	"slices"
	"strings"
)

// wholeKey is the resource of a rule that names none: every object is its own.
const wholeKey = "{key}"

// A template is a compiled resource.
type template struct {
	text     string
	parts    []part
	usesKey  bool
	usesVars bool
}

// A part is text, or the number of the group of the match that stands in its place: 0 is the whole key.
type part struct {
	text  string
	group int // -1 for text
}

// compileTemplate reads a resource. vars are the variables of the match.
func compileTemplate(text string, vars []string) (template, error) {
	if text == "" {
		text = wholeKey
	}
	if err := checkText("resource", text); err != nil {
		return template{}, err
	}
	if strings.Contains(text, "*") {
		return template{}, fmt.Errorf("%q: a resource has no *; name the segment in match, as in jobs/{job}/**, "+
			"and write {job} here", text)
	}
	t := template{text: text}
	for text != "" {
		before, rest, found := strings.Cut(text, "{")
		if err := t.addText(before); err != nil {
			return template{}, err
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return template{}, fmt.Errorf("{%s is not closed; write {name} for a variable of match", rest)
		}
		if err := t.addVariable(name, vars); err != nil {
			return template{}, err
		}
		text = after
	}
	return t, nil
}

func (t *template) addText(s string) error {
	if strings.Contains(s, "}") {
		return fmt.Errorf("%q closes a brace that is not open; write {name} for a variable of match", s)
	}
	if s != "" {
		t.parts = append(t.parts, part{text: s, group: -1})
	}
	return nil
}

func (t *template) addVariable(name string, vars []string) error {
	if name == "key" {
		t.usesKey = true
		t.parts = append(t.parts, part{group: 0})
		return nil
	}
	i := slices.Index(vars, name)
	if i < 0 {
		return fmt.Errorf("match has no variable {%s}; there %s", name, listVars(vars))
	}
	t.usesVars = true
	t.parts = append(t.parts, part{group: i + 1})
	return nil
}

func listVars(vars []string) string {
	if len(vars) == 0 {
		return "is only {key}, the whole key"
	}
	return "are {" + strings.Join(vars, "}, {") + "} and {key}, the whole key"
}

// expand makes the resource of a key. groups are those of the match, nil where it has no variables.
func (t *template) expand(bucket, key string, groups []int) string {
	var b strings.Builder
	b.Grow(len(bucket) + 1 + len(key))
	b.WriteString(bucket)
	b.WriteByte('/')
	for _, p := range t.parts {
		switch p.group {
		case -1:
			b.WriteString(p.text)
		case 0:
			b.WriteString(key)
		default:
			b.WriteString(key[groups[2*p.group]:groups[2*p.group+1]])
		}
	}
	return b.String()
}
