//! Completes interrupted file operations in the directory of a table.

use super::replay_filters::ReplayFilters;
use super::{ListedName, SstableLists, foreign_files, is_truncated, names_in, remove_all, sealed_places};
use crate::config::EngineConfig;
use crate::deletion_log::{self, Finished, Incomplete, QUARANTINE, Sealed};
use crate::error::EngineError;
use rt::ShardId;
use sstable::SstablePath;
use std::path::Path;

/// The content of a table's directory after interrupted operations were finished.
#[derive(Default)]
pub(crate) struct CleanDirectory {
    /// The sealed sstables that were not truncated.
    pub places: Vec<SstablePath>,
    /// The sealed sstables that cannot be opened, because they have lost their table of contents.
    pub incomplete: Vec<Incomplete>,
    /// Listed sstables of which no file is left.
    pub missing: Vec<SstablePath>,
    /// By the shard that wrote them.
    pub filters: Vec<(ShardId, ReplayFilters)>,
    /// The lists on disk.
    pub lists: SstableLists,
}

impl CleanDirectory {
    /// Removes sstables from the lists, then their files. A crash leaves all or none of those in
    /// Messina's own format. No other shard may use the directory.
    pub async fn remove(
        &mut self,
        dir: &Path,
        config: &EngineConfig,
        places: &[SstablePath],
    ) -> Result<(), EngineError> {
        self.lists.forget(dir, config.host_id, places).await?;
        remove_all(dir, places).await
    }
}

/// Finishes the operations that the last run left undone in a table's directory, and logs files
/// of unknown formats. Only one shard may do this, and only while no other uses the directory.
pub(crate) async fn finish_interrupted(dir: &Path, config: &EngineConfig) -> Result<CleanDirectory, EngineError> {
    let mut names = names_in(dir).await?;
    if names.is_empty() {
        return Ok(CleanDirectory::default());
    }
    for (format, files) in foreign_files(&names) {
        tracing::warn!(dir = %dir.display(), files = files.len(), first = files[0], format,
            "a table's directory has files of a format that this release cannot read: their data is not served");
    }
    // A killed process may leave names that were never synced. Replay skips records that a sealed
    // sstable covers, so the name of the sstable must survive a power loss after the log is
    // retired.
    rt::fs::sync_dir(dir).await.map_err(EngineError::io(dir))?;
    let mut lists = SstableLists::read_all(dir, &names, config.host_id).await?;
    let listed = lists.all();
    let was_sealed = |place: &SstablePath| match listed.contains(&ListedName::of(place)) {
        true => Sealed::Yes,
        false if lists.is_any_unusable => Sealed::Unknown,
        false => Sealed::No,
    };
    let finished = deletion_log::finish_pending(dir, was_sealed).await?;
    log_finished(dir, &finished);
    if finished != Finished::default() {
        names = names_in(dir).await?;
    }
    let filters = ReplayFilters::read_all(dir, &names, config.host_id).await?;
    let replaced = finished.replaced.iter().filter_map(|generation| generation.parse().ok());
    let mut unlisted: Vec<_> = replaced.map(|generation| SstablePath::new(dir, generation)).collect();
    unlisted.extend(lists.truncated(dir, &filters));
    lists.forget(dir, config.host_id, &unlisted).await?;
    lists.merge_absent(dir, config.host_id, rt::shard::count() as u16).await?;
    let (void, places): (Vec<_>, Vec<_>) =
        sealed_places(dir, &names).into_iter().partition(|place| is_truncated(&filters, place));
    let mut clean = CleanDirectory { places, incomplete: finished.incomplete, filters, lists, ..Default::default() };
    let is_void = |one: &mut Incomplete| is_truncated(&clean.filters, &one.place);
    let mut gone: Vec<_> = clean.incomplete.extract_if(.., is_void).map(|one| one.place).collect();
    gone.extend(void);
    if !gone.is_empty() {
        let generations: Vec<String> = gone.iter().map(|place| place.generation.to_string()).collect();
        tracing::warn!(dir = %dir.display(), sstables = generations.join(","),
            "removing sstables that TRUNCATE has emptied: a crash interrupted their removal, or they were put back since. \
             Load snapshots with `messina admin refresh`");
        clean.remove(dir, config, &gone).await?;
    }
    let there: Vec<_> = clean.places.iter().chain(clean.incomplete.iter().map(|one| &one.place)).cloned().collect();
    clean.missing = clean.lists.missing(dir, &there);
    Ok(clean)
}

/// Logs the operations that were completed, and files that are not served.
fn log_finished(dir: &Path, finished: &Finished) {
    if !finished.deleted.is_empty() || !finished.orphans.is_empty() {
        let unsealed = finished.orphans.join(",");
        tracing::info!(dir = %dir.display(), removed = finished.deleted.len(), unsealed,
            "completed file operations that the last run left unfinished");
    }
    for generation in &finished.rebuilt {
        tracing::warn!(dir = %dir.display(), generation,
            "TOC.txt of an sstable was missing: rebuilt from Checksums.db, no data is lost");
    }
    for file in &finished.quarantined {
        tracing::warn!(file = %file.display(),
            "file of an sstable of another database without TOC.txt: moved to quarantine, its rows are not served");
    }
    if finished.in_quarantine > 0 {
        tracing::warn!(dir = %dir.join(QUARANTINE).display(), files = finished.in_quarantine,
            "files are in quarantine, and their rows are not served: restore their sstables from a snapshot, or remove the files");
    }
}
