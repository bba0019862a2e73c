//! The directory of a table: created before its first file, and cleared of replaced sstables.

use crate::datadir::Made;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::metrics::add;
use crate::table::{Attached, Table};
use crate::table_dir::{ListedNames, is_absent, remove_all, sstable_list};
use sstable::SstablePath;
use std::path::Path;
use std::rc::Rc;

impl Engine {
    /// Creates a table's directory durably, once per run and before the first file.
    pub(crate) async fn make_directory(&self, table: &Table) -> Result<(), EngineError> {
        if table.has_directory.get() {
            return Ok(());
        }
        self.make_directories(&table.dir).await?;
        table.has_directory.set(true);
        self.made(Made::Directory(table.schema().id));
        Ok(())
    }

    /// The same before data is removed. If the operator has removed the directory since, it is
    /// created again: a missing directory must not prevent the removal. If the directory of its
    /// keyspace is missing too, the disk may not be mounted: then the removal fails.
    pub(crate) async fn renew_directory(&self, table: &Table) -> Result<(), EngineError> {
        let is_gone = table.has_directory.get() && is_absent(&table.dir).await?;
        if is_gone
            && let Some(keyspace) = table.dir.parent()
            && !is_absent(keyspace).await?
        {
            tracing::warn!(dir = %table.dir.display(), "the table's directory is missing, with its sstables and snapshots");
            table.has_directory.set(false);
        }
        self.make_directory(table).await
    }

    /// The same for a table that may not be open.
    pub(crate) async fn make_directories(&self, dir: &Path) -> Result<(), EngineError> {
        rt::fs::create_dir_all(dir).await.map_err(EngineError::io(dir))?;
        let above = dir.ancestors().skip(1).take_while(|above| above.starts_with(&self.config().data_dir));
        for above in above {
            rt::fs::sync_dir(above).await.map_err(EngineError::io(above))?;
        }
        Ok(())
    }

    /// Removes the files of sstables that are in no set any more. A crash leaves all or none of
    /// them. Waits for a snapshot that links files of the table on this shard. After an error they
    /// are [`Leftovers`](crate::table::Leftovers), and later calls try again.
    pub(crate) async fn delete_files(&self, table: &Table, sstables: &[Rc<Attached>]) -> Result<(), EngineError> {
        // Before anything is awaited: another truncation must name them.
        let places: Vec<_> = sstables.iter().map(|own| own.sstable.place().clone()).collect();
        table.leftovers.add(&places);
        for own in sstables.iter().filter(|own| own.is_read()) {
            if let Err(error) = own.sstable.keep_open().await {
                tracing::warn!(generation = %own.generation(), %error,
                    "an sstable is removed while it is read, and cannot be kept open: its readers will fail");
            }
        }
        self.remove_leftovers(table, places).await?;
        if table.leftovers.may_return()
            && let Err(error) = self.remove_leftovers(table, table.leftovers.places()).await
        {
            tracing::warn!(dir = %table.dir.display(), %error, "replaced sstables still cannot be removed, and take up disk space; retrying");
        }
        Ok(())
    }

    /// Replaces this shard's list of a table's sstables durably, unless it is up to date on disk.
    pub(crate) async fn list_sstables(&self, table: &Table) -> Result<(), EngineError> {
        let listed = &table.listed;
        let _turn = listed.turn.acquire().await.map_err(|_| EngineError::Cancelled)?;
        let names = table.names_to_list();
        if listed.is(&names) || listed.is(&ListedNames::new()) && !self.lists_sstables() {
            return Ok(());
        }
        listed.set(None);
        sstable_list::write(&table.dir, self.config().shard, &names, self.config().host_id).await?;
        listed.set(Some(names));
        Ok(())
    }

    /// The same for a table that was just opened. An error is returned only if the list on disk
    /// names an sstable that is not this shard's: another shard may remove it.
    pub(crate) async fn list_at_start(&self, table: &Table) -> Result<(), EngineError> {
        let may_be_late = table.listed.is_within(&table.names_to_list());
        match self.list_sstables(table).await {
            Err(error) if may_be_late => {
                tracing::warn!(dir = %table.dir.display(), %error,
                    "the sstables of a table cannot be listed: until its next flush a start would not detect their loss");
                Ok(())
            }
            done => done,
        }
    }

    /// Removes the files of some leftovers of a table, after they have left the list of sstables.
    pub(crate) async fn remove_leftovers(&self, table: &Table, places: Vec<SstablePath>) -> Result<(), EngineError> {
        if places.is_empty() {
            return Ok(());
        }
        let removed = async {
            self.list_sstables(table).await?;
            let _removing = table.sstable_files.read().await;
            remove_all(&table.dir, &places).await
        };
        if let Err(error) = removed.await {
            table.leftovers.removal_failed();
            return Err(error);
        }
        table.leftovers.are_removed(&places);
        add(&self.counters().sstables_deleted, places.len() as u64);
        Ok(())
    }
}
