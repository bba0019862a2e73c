//! The checker `streamed_files_identical`: an sstable that moved is the same on both disks, byte by
//! byte. It keeps its name, which no other sstable of the cluster has.

use rt::sim::Disk;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The directory of sessions in the directory of a table.
const SESSIONS: &str = "streaming";
/// The beginning of the name of a session that sends files.
const SENDS: &str = "out-";
/// The end of the name of an sstable's table of contents, which is there once the sstable is
/// complete.
const TABLE_OF_CONTENTS: &str = "-TOC.txt";

/// A file: the index of its disk, and its path there.
pub type Place = (usize, PathBuf);

/// Compares the files of all sstables that more than one disk has. Returns the number of compared
/// pairs.
pub fn check(disks: &[Disk]) -> Result<u64, String> {
    let copies = copies(disks);
    for (one, other) in &copies {
        let contents = |(node, path): &Place| disks[*node].contents(path);
        if contents(one) != contents(other) {
            return Err(format!("streamed_files_identical is broken: {one:?} and {other:?} differ"));
        }
    }
    Ok(copies.len() as u64)
}

/// The files of complete sstables that have a copy on another disk, with that copy.
pub fn copies(disks: &[Disk]) -> Vec<(Place, Place)> {
    let mut seen: BTreeMap<OsString, Place> = BTreeMap::new();
    let mut copies = Vec::new();
    for (node, disk) in disks.iter().enumerate() {
        for path in complete_files(disk) {
            let name = path.file_name().unwrap_or_default().to_owned();
            match seen.get(&name) {
                Some(first) if first.0 != node => copies.push((first.clone(), (node, path))),
                Some(_) => {}
                None => drop(seen.insert(name, (node, path))),
            }
        }
    }
    copies
}

/// The files of the complete sstables in the directories of tables, and of those that are sent.
fn complete_files(disk: &Disk) -> Vec<PathBuf> {
    let files: BTreeSet<PathBuf> = disk.files().into_iter().map(|(path, _)| path).collect();
    let is_complete = |path: &&PathBuf| {
        let Some((sstable, _)) = path.to_str().and_then(|path| path.rsplit_once('-')) else { return false };
        files.contains(Path::new(&format!("{sstable}{TABLE_OF_CONTENTS}"))) && !is_arriving(path)
    };
    files.iter().filter(is_complete).cloned().collect()
}

/// Whether a file is in the directory of a session that receives.
fn is_arriving(path: &Path) -> bool {
    let mut names = path.iter().skip_while(|name| *name != SESSIONS).skip(1);
    names.next().is_some_and(|session| !session.to_string_lossy().starts_with(SENDS))
}
