//! What sstables a directory holds, and removing one.

use crate::error::Error;
use crate::generation::{Component, Generation, Place, Version};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The contents of a table's directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// Sealed sstables.
    pub sealed: Vec<Place>,
    /// Files of sstables that were never sealed, or whose removal was cut short.
    pub leftovers: Vec<PathBuf>,
}

/// Lists the sstables in `dir`. Other files are left out.
pub async fn list(dir: &Path) -> Result<Listing, Error> {
    let mut found: BTreeMap<(Version, Generation), (bool, Vec<PathBuf>)> = BTreeMap::new();
    for entry in rt::fs::read_dir(dir).await? {
        if let Some((place, component)) = Place::parse_name(dir, &entry.name) {
            let (sealed, files) = found.entry((place.version, place.generation)).or_default();
            *sealed |= component == Component::Toc;
            files.push(dir.join(&entry.name));
        }
    }
    let mut listing = Listing::default();
    for ((version, generation), (sealed, files)) in found {
        if sealed {
            listing.sealed.push(Place { dir: dir.to_path_buf(), version, generation });
        } else {
            listing.leftovers.extend(files);
        }
    }
    Ok(listing)
}

/// Removes an sstable: first unsealed, durably, so that a crash half-way leaves only leftovers. Removing one that is not there
/// is no error.
pub async fn remove(place: &Place) -> Result<(), Error> {
    let unsealed = rt::fs::rename(&place.path(Component::Toc), &place.path(Component::TemporaryToc)).await;
    match unsealed {
        Ok(()) => rt::fs::sync_dir(&place.dir).await?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    remove_files(place).await;
    Ok(())
}

/// Removes the files of one that is not sealed. What cannot be removed stays a leftover, to be removed at the next start.
pub(crate) async fn remove_files(place: &Place) {
    for component in Component::ALL {
        let path = place.path(component);
        match rt::fs::remove_file(&path).await {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "a file of an sstable stays behind"),
        }
    }
}
