//! Names of files in the directory of a table, and the removal of sstables.

use super::replay_filters::{ReplayFilters, is_name_of_filters};
use super::sstable_list::is_name_of_list;
use crate::deletion_log::{self, Replacement};
use crate::error::EngineError;
use rt::ShardId;
use sstable::{Component, SstablePath, Version};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Whether an sstable was truncated.
pub(crate) fn is_truncated(filters: &[(ShardId, ReplayFilters)], place: &SstablePath) -> bool {
    let generation = place.generation.to_string();
    filters.iter().any(|(_, filters)| filters.truncated_sstables.contains(&generation))
}

/// Whether there is nothing at a path. This needs no file descriptor.
pub(crate) async fn is_absent(path: &Path) -> Result<bool, EngineError> {
    match rt::fs::metadata(path).await {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(EngineError::io(path)(error)),
    }
}

/// Removes a directory with all that is in it, if it is there.
pub(crate) async fn remove_tree(dir: &Path) -> Result<(), EngineError> {
    match rt::fs::remove_dir_all(dir).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(EngineError::io(dir)),
    }
}

/// Whether an entry counts as a file. Directories count in three places. A directory in the place
/// of a TOC.txt: its sstable was sealed and cannot be read. A directory in the place of replay
/// filters: truncated rows would return without them. A directory in the place of a list of
/// sstables: the list cannot be replaced until it is moved aside.
fn is_file(dir: &Path, entry: &rt::fs::DirEntry) -> bool {
    !entry.is_dir
        || is_name_of_filters(&entry.name)
        || is_name_of_list(&entry.name)
        || SstablePath::parse_name(dir, &entry.name).is_some_and(|(_, component)| component == Component::Toc)
}

/// The names of the files in a directory; none if there is no such directory.
pub(crate) async fn names_in(dir: &Path) -> Result<Vec<String>, EngineError> {
    match rt::fs::read_dir(dir).await {
        Ok(entries) => Ok(entries.into_iter().filter(|entry| is_file(dir, entry)).map(|entry| entry.name).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(EngineError::io(dir)(error)),
    }
}

/// The sealed sstables among the names of a directory.
pub(crate) fn sealed_places(dir: &Path, names: &[String]) -> Vec<SstablePath> {
    names
        .iter()
        .filter_map(|name| match SstablePath::parse_name(dir, name)? {
            (place, Component::Toc) => Some(place),
            _ => None,
        })
        .collect()
}

/// The files that have the name of an sstable of an unknown format, by format.
pub(crate) fn foreign_files(names: &[String]) -> BTreeMap<String, Vec<&str>> {
    let mut foreign: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in names {
        if let Some(format) = sstable::unreadable_format(name) {
            foreign.entry(format).or_default().push(name);
        }
    }
    foreign
}

/// Removes sstables of a directory. Of those in Messina's own format, a crash leaves all or none.
pub(crate) async fn remove_all(dir: &Path, places: &[SstablePath]) -> Result<(), EngineError> {
    let (own, foreign): (Vec<_>, Vec<_>) = places.iter().partition(|place| place.version == Version::Me);
    if !own.is_empty() {
        let delete = own.iter().map(|place| place.generation.to_string()).collect();
        deletion_log::replace(dir, &Replacement { seal: Vec::new(), delete }).await?;
    }
    for place in foreign {
        sstable::directory::remove(place).await?;
    }
    Ok(())
}

/// Whether an sstable has a table of contents, or may have one that cannot be examined.
pub(crate) async fn is_sealed(place: &SstablePath) -> bool {
    !matches!(is_absent(&place.path(Component::Toc)).await, Ok(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_foreign_formats_are_named() {
        let names = [
            "oa-1-big-Data.db",
            "oa-1-big-TOC.txt",
            "da-3gsm_17kx_1m7yk2rabu8kc8hm6-bti-Data.db",
            "me-1-big-Data.db",
            "manifest.json",
        ];
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let foreign = foreign_files(&names);
        let of_cassandra = foreign.iter().find(|(format, _)| format.starts_with("oa")).expect("oa is foreign");
        assert_eq!(of_cassandra.1, &["oa-1-big-Data.db", "oa-1-big-TOC.txt"]);
        assert!(foreign.values().flatten().all(|name| !name.starts_with("me") && !name.starts_with("manifest")));
    }
}
