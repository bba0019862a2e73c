//! Lists the sstables of a directory, removes an sstable, and rebuilds a lost TOC.txt.

use crate::checksums::Checksums;
use crate::error::Error;
use crate::generation::{Component, Generation, SstablePath, Version};
use crate::writer::{toc_text, write_over};
use rt::fs::IoClass;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The name of TOC.txt while it is rebuilt.
const REBUILT_TOC: &str = "TOC.txt.rebuilt";

/// The contents of a table's directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// Sealed sstables.
    pub sealed: Vec<SstablePath>,
    /// Files of sstables that were never sealed, or were removed in part.
    pub leftovers: Vec<PathBuf>,
}

/// Lists the sstables in `dir`. Other files are ignored.
pub async fn list(dir: &Path) -> Result<Listing, Error> {
    let mut found: BTreeMap<(Version, Generation), (bool, Vec<PathBuf>)> = BTreeMap::new();
    for entry in rt::fs::read_dir(dir).await.map_err(Error::io(dir))? {
        if let Some((place, component)) = SstablePath::parse_name(dir, &entry.name) {
            let (sealed, files) = found.entry((place.version, place.generation)).or_default();
            *sealed |= component == Component::Toc;
            files.push(dir.join(&entry.name));
        }
    }
    let mut listing = Listing::default();
    for ((version, generation), (sealed, files)) in found {
        if sealed {
            listing.sealed.push(SstablePath { dir: dir.to_path_buf(), version, generation });
        } else {
            listing.leftovers.extend(files);
        }
    }
    Ok(listing)
}

/// Removes an sstable. It is unsealed first, durably, so that a crash leaves only leftovers. If the
/// sstable does not exist, that is not an error.
pub async fn remove(place: &SstablePath) -> Result<(), Error> {
    let toc = place.path(Component::Toc);
    let unsealed = rt::fs::rename(&toc, &place.path(Component::TemporaryToc)).await;
    match unsealed {
        Ok(()) => rt::fs::sync_dir(&place.dir).await.map_err(Error::io(&place.dir))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Io { path: toc, source }),
    }
    remove_files(place).await;
    Ok(())
}

/// Removes the files of an unsealed sstable. Files that cannot be removed stay as leftovers until
/// the next start. Then the mark of the unfinished sstable stays as well: without it, they would
/// count as the rest of a sealed sstable.
pub(crate) async fn remove_files(place: &SstablePath) {
    let mut is_empty = true;
    for component in Component::ALL.into_iter().filter(|component| *component != Component::TemporaryToc) {
        is_empty &= remove_file(place.path(component)).await;
    }
    if is_empty {
        remove_file(place.path(Component::TemporaryToc)).await;
    }
}

/// Removes a file of an unsealed sstable. Returns whether it was removed.
async fn remove_file(path: PathBuf) -> bool {
    match rt::fs::remove_file(&path).await {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "cannot remove a file of an unsealed sstable; it stays until the next start");
            false
        }
    }
}

/// Writes the TOC.txt of a finished sstable again. Checksums.db lists every component with its
/// length and checksum, TOC.txt included, so the new file has the same bytes as the lost one.
///
/// Changes nothing, and returns the reason, if the sstable has no Checksums.db (other databases
/// wrote it), or if another component is missing or damaged.
pub async fn rebuild_toc(place: &SstablePath) -> Result<Result<(), String>, Error> {
    let file = Component::Checksums.name();
    let checksums = match read_if_there(&place.path(Component::Checksums)).await?.map(|bytes| Checksums::read(&bytes)) {
        Some(Ok(checksums)) => checksums,
        Some(Err(_)) => return Ok(Err(format!("{file} is damaged"))),
        None => return Ok(Err(format!("{file} is missing"))),
    };
    let small = checksums.files.iter().map(|(name, _, _)| name.as_str()).filter(|name| *name != Component::Toc.name());
    for name in small.clone() {
        let Some(component) = Component::named(name) else {
            return Ok(Err(format!("{file} lists {name}, which is no known component")));
        };
        match read_if_there(&place.path(component)).await? {
            None => return Ok(Err(format!("{name} is missing"))),
            Some(bytes) if checksums.check(component, &bytes).is_err() => {
                return Ok(Err(format!("{name} is damaged")));
            }
            Some(_) => {}
        }
    }
    for (component, wanted) in [(Component::Data, checksums.data_length), (Component::Index, checksums.index_length)] {
        let path = place.path(component);
        match rt::fs::metadata(&path).await {
            Ok(found) if found.len == wanted => {}
            Ok(_) => return Ok(Err(format!("{} has another length", component.name()))),
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(Error::Io { path, source }),
            Err(_) => return Ok(Err(format!("{} is missing", component.name()))),
        }
    }
    let toc = toc_text(small).into_bytes();
    if checksums.check(Component::Toc, &toc).is_err() {
        return Ok(Err(format!("{file} does not match the components")));
    }
    // With this name, no start mistakes the file for the mark of an unfinished sstable.
    let rebuilt = place.dir.join(place.file_name(REBUILT_TOC));
    write_over(rebuilt.clone(), toc, IoClass::Background).await?;
    rt::fs::rename(&rebuilt, &place.path(Component::Toc)).await.map_err(Error::io(&rebuilt))?;
    rt::fs::sync_dir(&place.dir).await.map_err(Error::io(&place.dir))?;
    Ok(Ok(()))
}

async fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match rt::fs::read(path).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path)(error)),
    }
}
