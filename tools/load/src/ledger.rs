//! The ledger's file: which writes were sent, and which of them were acknowledged.
//!
//! The file is a journal. A write is recorded before it is sent, and again when the server has
//! acknowledged it. Each record is one line and one system call. So the file is correct at every
//! moment: when this program is killed, the kernel has the records of all writes that were sent. A
//! line without its end was cut off by such a kill, and its write was never sent.
//!
//! ```text
//! messina-ledger 1 SEED VALUE_SIZE      the first line
//! round NUMBER                          a run of ledger-write begins
//! put KEY VERSION                       an INSERT is about to be sent
//! delete KEY VERSION                    a DELETE is about to be sent
//! ok KEY VERSION                        the server acknowledged it
//! add KEY                               an increment of a counter is about to be sent
//! added KEY                             the server acknowledged one
//! ```

use crate::Error;
use crate::verdict::{Counter, History, Write as RowWrite};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

const MAGIC: &str = "messina-ledger 1";

/// All that the notes say.
#[derive(Debug, Default, PartialEq)]
pub struct Ledger {
    pub seed: u64,
    pub value_size: usize,
    /// The number of the last round; the first is 1.
    pub round: u64,
    pub rows: BTreeMap<i64, History>,
    pub counters: BTreeMap<i64, Counter>,
}

/// One line of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Note {
    Round(u64),
    Sent(RowWrite, i64, i64),
    Acked(i64, i64),
    Add(i64),
    Added(i64),
}

impl Note {
    fn line(self) -> String {
        match self {
            Note::Round(number) => format!("round {number}\n"),
            Note::Sent(RowWrite::Put, key, version) => format!("put {key} {version}\n"),
            Note::Sent(RowWrite::Delete, key, version) => format!("delete {key} {version}\n"),
            Note::Acked(key, version) => format!("ok {key} {version}\n"),
            Note::Add(key) => format!("add {key}\n"),
            Note::Added(key) => format!("added {key}\n"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let verb = words.next()?;
        let mut number = || words.next()?.parse::<i64>().ok();
        let note = match verb {
            "round" => Note::Round(u64::try_from(number()?).ok()?),
            "put" => Note::Sent(RowWrite::Put, number()?, number()?),
            "delete" => Note::Sent(RowWrite::Delete, number()?, number()?),
            "ok" => Note::Acked(number()?, number()?),
            "add" => Note::Add(number()?),
            "added" => Note::Added(number()?),
            _ => return None,
        };
        words.next().is_none().then_some(note)
    }
}

impl Ledger {
    pub fn new(seed: u64, value_size: usize) -> Self {
        Ledger { seed, value_size, ..Ledger::default() }
    }

    /// Takes a note into account. False: it contradicts the notes before it.
    fn apply(&mut self, note: Note) -> bool {
        let round = self.round;
        match note {
            Note::Round(number) => {
                self.round = number;
                number == round + 1
            }
            Note::Sent(write, key, version) => self.rows.entry(key).or_default().send(version, write, round),
            Note::Acked(key, version) => self.rows.get_mut(&key).is_some_and(|row| row.acknowledge(version)),
            Note::Add(key) => {
                let counter = self.counters.entry(key).or_default();
                *counter = Counter { sent: counter.sent + 1, acked: counter.acked, round };
                true
            }
            Note::Added(key) => self.counters.get_mut(&key).is_some_and(|counter| {
                counter.acked += 1;
                counter.acked <= counter.sent
            }),
        }
    }

    fn first_line(&self) -> String {
        format!("{MAGIC} {} {}\n", self.seed, self.value_size)
    }

    /// The ledger of a file's text, and the length of its whole lines in bytes. None: there is not
    /// even a first line.
    fn parse(text: &str) -> Result<Option<(Self, usize)>, String> {
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut lines = text[..whole].lines().zip(1..);
        let Some((first, _)) = lines.next() else { return Ok(None) };
        let mut numbers = first.strip_prefix(MAGIC).ok_or("it is not a ledger")?.split_whitespace();
        let mut number = || numbers.next().and_then(|word| word.parse::<u64>().ok()).ok_or("its first line is wrong");
        let mut ledger = Ledger::new(number()?, number()? as usize);
        for (line, number) in lines {
            let note = Note::parse(line).ok_or_else(|| format!("line {number} is no note: {line:?}"))?;
            if !ledger.apply(note) {
                return Err(format!("line {number} contradicts the lines before: {line:?}"));
            }
        }
        Ok(Some((ledger, whole)))
    }
}

/// A ledger and its file. The file is locked while it is open.
pub struct Journal {
    pub ledger: Ledger,
    file: File,
}

impl Journal {
    /// Opens an existing ledger for reading; while a writer has it, this is an error.
    pub fn read(path: &Path) -> Result<Ledger, Error> {
        let said = |error: String| format!("the ledger {}: {error}", path.display());
        let mut file = File::open(path).map_err(|error| said(error.to_string()))?;
        lock(&file, false).map_err(said)?;
        let text = text(&mut file).map_err(said)?;
        let (ledger, _) = Ledger::parse(&text).map_err(said)?.ok_or_else(|| said("it is empty".into()))?;
        Ok(ledger)
    }

    /// Opens a ledger for writing; None if there is none yet.
    pub fn open(path: &Path) -> Result<Option<Self>, Error> {
        let said = |error: String| format!("the ledger {}: {error}", path.display());
        let mut file = match OpenOptions::new().read(true).append(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| said(error.to_string()))?,
        };
        lock(&file, true).map_err(said)?;
        let Some((ledger, whole)) = Ledger::parse(&text(&mut file).map_err(said)?).map_err(said)? else {
            return Ok(None);
        };
        file.set_len(whole as u64)?;
        Ok(Some(Journal { ledger, file }))
    }

    pub fn create(path: &Path, ledger: Ledger) -> Result<Self, Error> {
        let said = |error: std::io::Error| format!("the ledger {}: {error}", path.display());
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(said)?;
        lock(&file, true).map_err(|error| said(std::io::Error::other(error)))?;
        file.set_len(0).map_err(said)?;
        file.write_all(ledger.first_line().as_bytes()).map_err(said)?;
        Ok(Journal { ledger, file })
    }

    /// Adds a note. Panics when the file cannot be written: without the note, a later check would
    /// blame the server for what this program forgot.
    pub fn note(&mut self, note: Note) {
        self.file.write_all(note.line().as_bytes()).expect("the ledger can be written");
        assert!(self.ledger.apply(note), "{note:?} contradicts the ledger");
    }
}

fn lock(file: &File, alone: bool) -> Result<(), String> {
    let locked = if alone { file.try_lock() } else { file.try_lock_shared() };
    locked.map_err(|error| match error {
        TryLockError::WouldBlock => "another process writes it".into(),
        TryLockError::Error(error) => error.to_string(),
    })
}

/// The text of a file. A kill cannot cut a character in two, as all of them are ASCII.
fn text(file: &mut File) -> Result<String, String> {
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Seen, Verdict, Write::*};
    use std::path::PathBuf;

    /// A path of a test's own, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("messina-load-{}-{name}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    const NOTES: [Note; 9] = [
        Note::Round(1),
        Note::Sent(Put, 5, 1),
        Note::Acked(5, 1),
        Note::Sent(Delete, 5, 2),
        Note::Sent(Put, -3, 1),
        Note::Add(9),
        Note::Add(9),
        Note::Added(9),
        Note::Round(2),
    ];

    fn written(path: &Path) -> Ledger {
        let mut journal = Journal::create(path, Ledger::new(4, 200)).unwrap();
        NOTES.into_iter().for_each(|note| journal.note(note));
        journal.ledger
    }

    #[test]
    fn a_file_says_what_was_noted() {
        let scratch = Scratch::new("says");
        let ledger = written(&scratch.0);
        assert_eq!(Journal::read(&scratch.0).unwrap(), ledger);
        assert_eq!((ledger.seed, ledger.value_size, ledger.round), (4, 200, 2));
        assert_eq!((ledger.rows[&5].acked(), ledger.rows[&5].sent(), ledger.rows[&5].round), (1, 2, 1));
        assert_eq!(ledger.rows[&-3].judge(Seen::Absent), Verdict::Good);
        assert_eq!(ledger.counters[&9], Counter { sent: 2, acked: 1, round: 1 });
    }

    /// Wherever a kill cuts the file, the whole lines before the cut count.
    #[test]
    fn a_file_cut_off_anywhere_is_right() {
        let scratch = Scratch::new("cut");
        written(&scratch.0);
        let text = std::fs::read_to_string(&scratch.0).unwrap();
        let first = text.find('\n').unwrap() + 1;
        for cut in 0..=text.len() {
            std::fs::write(&scratch.0, &text[..cut]).unwrap();
            let journal = Journal::open(&scratch.0).unwrap();
            assert_eq!(journal.is_some(), cut >= first, "cut at {cut}");
            let Some(mut journal) = journal else { continue };
            let notes = text[first..cut].matches('\n').count();
            let mut expected = Ledger::new(4, 200);
            assert!(NOTES[..notes].iter().all(|note| expected.apply(*note)));
            assert_eq!(journal.ledger, expected, "cut at {cut}");
            journal.note(Note::Sent(Put, 77, 1));
            let ledger = journal.ledger;
            drop(journal.file);
            assert_eq!(Journal::read(&scratch.0).unwrap(), ledger, "cut at {cut}");
        }
    }

    #[test]
    fn files_that_are_not_ledgers_are_refused() {
        let head = "messina-ledger 1 4 200\n";
        for (text, problem) in [
            ("something else\n", "not a ledger"),
            ("messina-ledger 1 4\n", "first line"),
            (&format!("{head}sold 1 2\n"), "line 2 is no note"),
            (&format!("{head}put 1\n"), "line 2 is no note"),
            (&format!("{head}put 1 1 1\n"), "line 2 is no note"),
            (&format!("{head}put 1 1\nok 1 2\n"), "line 3 contradicts"),
            (&format!("{head}put 1 1\nput 1 1\n"), "line 3 contradicts"),
            (&format!("{head}put 1 2\n"), "line 2 contradicts"),
            (&format!("{head}added 1\n"), "line 2 contradicts"),
            (&format!("{head}round 2\n"), "line 2 contradicts"),
        ] {
            let error = Ledger::parse(text).unwrap_err();
            assert!(error.contains(problem), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_ledger_has_one_writer() {
        let scratch = Scratch::new("lock");
        let journal = Journal::create(&scratch.0, Ledger::new(1, 8)).unwrap();
        let said = |error: Error| assert!(error.to_string().contains("another process"), "{error}");
        said(Journal::open(&scratch.0).map(|_| ()).unwrap_err());
        said(Journal::read(&scratch.0).map(|_| ()).unwrap_err());
        drop(journal);
        assert!(Journal::open(&scratch.0).unwrap().is_some());
    }

    #[test]
    fn no_ledger_is_none() {
        let scratch = Scratch::new("none");
        assert!(Journal::open(&scratch.0).unwrap().is_none());
        assert!(Journal::read(&scratch.0).is_err());
    }
}
