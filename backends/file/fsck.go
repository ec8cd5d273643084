package file

// A Level says how much a [Finding] matters.
type Level string

const (
	// Error is a promise that is broken, or a start that will fail. [Finding.Mend] does nothing for it.
	Error Level = "error"

	// Mend is a harmless left-over, such as a kill leaves. [Finding.Mend] removes it. Much of it the next [Open] removes, too.
	Mend Level = "mend"

	// Note is something to know: what another program did, and may do.
	Note Level = "note"
)

// A Finding is one thing that a [Checker] has found.
type Finding struct {
	Level  Level
	What   string // a phrase in an operator's words
	Where  string // a path
	Repair string // of Mend: what [Finding.Mend] does; of the others: what to do by hand, "" if nothing

	mend func() error
}

// An Object is one that a [Checker] has found.
type Object struct {
	Bucket, Key string
	Where       string            // its path
	Headers     map[string]string // what is recorded of it, user metadata among them, by canonical names
}

// Mend does what Repair says, where the level is [Mend], and nothing else. It may be called until the Checker is closed.
func (f Finding) Mend() error {
	if f.mend == nil {
		return nil
	}
	return f.mend()
}
