//! The names on a simulated disk: as programs see them, and as a power loss would leave them.
//!
//! A change of names is visible at once, and recorded in a journal. Syncing a directory makes the
//! changes that touch it durable. The disk chooses which of the other changes survive a power loss.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The target of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameEntry {
    File(u64),
    Dir,
}

/// One change of names.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Add { path: PathBuf, entry: NameEntry },
    Remove { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, entry: NameEntry },
}

impl Change {
    fn touches(&self, dir: &Path) -> bool {
        match self {
            Self::Add { path, .. } | Self::Remove { path } => path.parent() == Some(dir),
            Self::Rename { from, to, .. } => from.parent() == Some(dir) || to.parent() == Some(dir),
        }
    }
}

type Tree = BTreeMap<PathBuf, NameEntry>;

/// The visible and the durable tree, and the changes between them.
#[derive(Clone, Default)]
pub(crate) struct Names {
    seen: Tree,
    durable: Tree,
    journal: Vec<Change>,
}

/// `path` from the root, without `.` and `..`.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    out
}

fn apply(tree: &mut Tree, change: &Change) {
    match change {
        Change::Add { path, entry } => {
            tree.insert(path.clone(), *entry);
        }
        Change::Remove { path } => {
            let below: Vec<PathBuf> = tree.keys().filter(|p| p.starts_with(path)).cloned().collect();
            for path in below {
                tree.remove(&path);
            }
        }
        Change::Rename { from, to, entry } => {
            let below: Vec<PathBuf> = tree.keys().filter(|p| p.starts_with(from) && *p != from).cloned().collect();
            for path in below {
                if let (Ok(rest), Some(entry)) = (path.strip_prefix(from), tree.remove(&path)) {
                    tree.insert(to.join(rest), entry);
                }
            }
            tree.remove(from);
            tree.insert(to.clone(), *entry);
        }
    }
}

impl Names {
    fn change(&mut self, change: Change) {
        apply(&mut self.seen, &change);
        self.journal.push(change);
    }

    /// What `path` (normalised) refers to.
    pub fn get(&self, path: &Path) -> Option<NameEntry> {
        if path == Path::new("/") { Some(NameEntry::Dir) } else { self.seen.get(path).copied() }
    }

    pub fn file(&self, path: &Path) -> io::Result<u64> {
        match self.get(path) {
            Some(NameEntry::File(inode)) => Ok(inode),
            Some(NameEntry::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn parent_must_exist(&self, path: &Path) -> io::Result<()> {
        match path.parent().and_then(|parent| self.get(parent)) {
            Some(NameEntry::Dir) => Ok(()),
            Some(NameEntry::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub fn add_file(&mut self, path: &Path, inode: u64) -> io::Result<()> {
        self.parent_must_exist(path)?;
        if self.get(path).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.change(Change::Add { path: path.to_path_buf(), entry: NameEntry::File(inode) });
        Ok(())
    }

    pub fn add_dirs(&mut self, path: &Path) -> io::Result<()> {
        let mut above: Vec<&Path> = path.ancestors().collect();
        above.reverse();
        for dir in above {
            match self.get(dir) {
                Some(NameEntry::Dir) => {}
                Some(NameEntry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => self.change(Change::Add { path: dir.to_path_buf(), entry: NameEntry::Dir }),
            }
        }
        Ok(())
    }

    pub fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        self.file(path)?;
        self.change(Change::Remove { path: path.to_path_buf() });
        Ok(())
    }

    /// Removes a directory and everything below it, deepest first, as separate changes.
    pub fn remove_tree(&mut self, path: &Path) -> io::Result<()> {
        match self.get(path) {
            Some(NameEntry::Dir) => {}
            Some(NameEntry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        let mut below: Vec<PathBuf> = self.seen.keys().filter(|p| p.starts_with(path)).cloned().collect();
        below.reverse();
        for path in below {
            self.change(Change::Remove { path });
        }
        Ok(())
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let entry = self.get(from).ok_or(io::ErrorKind::NotFound)?;
        self.parent_must_exist(to)?;
        if from == to {
            return Ok(());
        }
        match (entry, self.get(to)) {
            (NameEntry::File(_), Some(NameEntry::Dir)) => return Err(io::ErrorKind::IsADirectory.into()),
            (NameEntry::Dir, Some(NameEntry::File(_))) => return Err(io::ErrorKind::NotADirectory.into()),
            (NameEntry::Dir, Some(NameEntry::Dir)) if !self.list(to)?.is_empty() => {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            _ => {}
        }
        if to.starts_with(from) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.change(Change::Rename { from: from.to_path_buf(), to: to.to_path_buf(), entry });
        Ok(())
    }

    /// The names directly in `dir`, in order.
    pub fn list(&self, dir: &Path) -> io::Result<Vec<(&OsStr, NameEntry)>> {
        match self.get(dir) {
            Some(NameEntry::Dir) => {}
            Some(NameEntry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        let mut out: Vec<_> = self
            .seen
            .iter()
            .filter(|(path, _)| path.parent() == Some(dir))
            .filter_map(|(path, entry)| Some((path.file_name()?, *entry)))
            .collect();
        out.sort_by_key(|(name, _)| *name);
        Ok(out)
    }

    /// All files, in order of path.
    pub fn files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.seen.iter().filter_map(|(path, entry)| match entry {
            NameEntry::File(inode) => Some((path.as_path(), *inode)),
            NameEntry::Dir => None,
        })
    }

    /// Makes the changes that touch `dir` durable.
    pub fn sync(&mut self, dir: &Path) {
        let (touching, rest): (Vec<_>, Vec<_>) = self.journal.drain(..).partition(|change| change.touches(dir));
        for change in &touching {
            apply(&mut self.durable, change);
        }
        self.journal = rest;
    }

    pub fn unsynced(&self) -> usize {
        self.journal.len()
    }

    /// Power loss: the first `kept` unsynced changes survive, the others do not.
    pub fn lose(&mut self, kept: usize) {
        for change in self.journal.drain(..).take(kept) {
            apply(&mut self.durable, &change);
        }
        // Entries below a directory that did not survive are gone.
        let mut whole = Tree::new();
        for (path, entry) in &self.durable {
            let parent = path.parent().unwrap_or(Path::new("/"));
            if parent == Path::new("/") || whole.get(parent) == Some(&NameEntry::Dir) {
                whole.insert(path.clone(), *entry);
            }
        }
        self.durable = whole;
        self.seen = self.durable.clone();
    }

    /// The inodes that a visible or possibly durable name refers to.
    pub fn inodes(&self) -> BTreeSet<u64> {
        let journal = self.journal.iter().filter_map(|change| match change {
            Change::Add { entry, .. } | Change::Rename { entry, .. } => Some(entry),
            Change::Remove { .. } => None,
        });
        self.seen
            .values()
            .chain(self.durable.values())
            .chain(journal)
            .filter_map(|entry| match entry {
                NameEntry::File(inode) => Some(*inode),
                NameEntry::Dir => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        normal(Path::new(name))
    }

    #[test]
    fn names_are_durable_after_their_directory_is_synced() {
        let mut names = Names::default();
        names.add_dirs(&path("d")).expect("made");
        names.sync(&path("/"));
        names.add_file(&path("d/a"), 1).expect("made");
        names.add_file(&path("d/b"), 2).expect("made");
        names.sync(&path("d"));
        names.rename(&path("d/a"), &path("d/b")).expect("renamed");
        assert_eq!(names.get(&path("d/b")), Some(NameEntry::File(1)));
        let mut kept = names.clone();
        names.lose(0);
        assert_eq!(
            (names.get(&path("d/a")), names.get(&path("d/b"))),
            (Some(NameEntry::File(1)), Some(NameEntry::File(2)))
        );
        kept.lose(1);
        assert_eq!((kept.get(&path("d/a")), kept.get(&path("d/b"))), (None, Some(NameEntry::File(1))));
    }

    #[test]
    fn orphans_vanish() {
        let mut names = Names::default();
        names.add_dirs(&path("a/b")).expect("made");
        names.add_file(&path("a/b/f"), 1).expect("made");
        names.sync(&path("a/b"));
        names.sync(&path("/"));
        names.lose(0);
        assert_eq!(names.files().count(), 0);
        assert_eq!((names.get(&path("a")), names.get(&path("a/b"))), (Some(NameEntry::Dir), None));
    }

    #[test]
    fn directories_move_with_their_contents() {
        let mut names = Names::default();
        names.add_dirs(&path("a/b")).expect("made");
        names.add_file(&path("a/b/f"), 1).expect("made");
        names.rename(&path("a"), &path("c")).expect("moved");
        assert_eq!(names.file(&path("c/b/f")).ok(), Some(1));
        assert!(names.get(&path("a")).is_none());
        assert!(names.rename(&path("c"), &path("c/b/x")).is_err());
    }
}
