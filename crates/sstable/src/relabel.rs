//! Moves an sstable to another level of leveled compaction without writing its data again.
//!
//! The level is in Statistics.db, which Checksums.db covers, and both cannot be replaced
//! atomically. So a new generation is made. Its other files are hard links to the old sstable's
//! files. It is sealed as any new sstable, and replaces the old one as the output of a compaction
//! does. Removing the old one then removes names only.

use crate::checksums::Checksums;
use crate::directory;
use crate::error::Error;
use crate::generation::{Component, Generation, SstablePath};
use crate::statistics::Statistics;
use crate::table::Sstable;
use crate::writer::{Sealed, Unsealed, write_synced};
use rt::fs::IoClass;
use std::path::Path;

impl Sstable {
    /// Whether checksums protect every component, as in sstables that Messina wrote.
    pub fn is_protected(&self) -> bool {
        self.page_sums.is_some()
    }

    /// Makes the same sstable with another generation and level, complete and durable but not
    /// sealed. Requires an sstable that is [protected](Sstable::is_protected). On an error no files
    /// are left.
    pub async fn relabeled(&self, generation: Generation, level: u32) -> Result<Unsealed, Error> {
        let place = SstablePath::new(self.dir(), generation);
        if let Err(error) = self.write_relabeled(&place, level).await {
            directory::remove_files(&place).await;
            return Err(error);
        }
        let outcome = Sealed {
            dir: place.dir.clone(),
            generation,
            data_bytes: self.data_bytes(),
            total_bytes: self.total_bytes(),
            partitions: self.stats().partitions(),
            first: self.first_key().clone(),
            last: self.last_key().clone(),
        };
        Ok(Unsealed { place, outcome })
    }

    async fn write_relabeled(&self, place: &SstablePath, level: u32) -> Result<(), Error> {
        let checksums_path = self.place.path(Component::Checksums);
        let mut checksums =
            Checksums::read(&read(&checksums_path).await?).map_err(|fault| fault.at(&checksums_path, 0))?;
        let statistics_path = self.place.path(Component::Statistics);
        let mut statistics = read(&statistics_path).await?;
        let toc_path = self.place.path(Component::Toc);
        let toc = read(&toc_path).await?;
        for (component, path, bytes) in
            [(Component::Statistics, &statistics_path, &statistics), (Component::Toc, &toc_path, &toc)]
        {
            checksums.check(component, bytes).map_err(|fault| fault.at(path, 0))?;
        }
        Statistics::set_level(&mut statistics, level).map_err(|fault| fault.at(&statistics_path, 0))?;
        checksums.set(Component::Statistics, &statistics);
        let rewritten = [(Component::Statistics, statistics), (Component::Checksums, checksums.write())];
        // Written first: it marks the new generation as unfinished.
        write_synced(place.path(Component::TemporaryToc), toc, IoClass::Background).await?;
        let is_rewritten = |name: &str| rewritten.iter().any(|(component, _)| component.name() == name);
        for name in self.components().iter().filter(|name| !is_rewritten(name) && *name != Component::Toc.name()) {
            let from = self.place.dir.join(self.place.file_name(name));
            rt::fs::hard_link(&from, &place.dir.join(place.file_name(name))).await.map_err(Error::io(&from))?;
        }
        for (component, bytes) in rewritten {
            write_synced(place.path(component), bytes, IoClass::Background).await?;
        }
        Ok(())
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, Error> {
    rt::fs::read(path).await.map_err(Error::io(path))
}
