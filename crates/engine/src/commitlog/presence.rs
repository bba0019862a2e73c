//! Whether the files of a running log still exist as they were created.
//!
//! An operator or a cleanup tool may remove, replace or cut off files of a log in use. Writes and
//! syncs of the open files still succeed, but their data is lost when the process ends. So a task
//! checks the run each second, and a stop does before it ends the run. If a file is missing, the
//! log fails: the node flushes the memtables, which still have everything, and stops.
//!
//! Segments that the keeper has removed must not count as missing: only segments that are live
//! before and after the check are considered.

use super::log::Commitlog;
use super::manifest::{self, segment_path};
use super::synced;
use rt::fs;
use rt::time::Duration;
use std::rc::Rc;

/// How often the running log is checked.
const PERIOD: Duration = Duration::from_secs(1);

/// The task that checks the run until the log ends.
pub(super) async fn watch(log: Rc<Commitlog>) {
    loop {
        let _ = rt::time::timeout(PERIOD, log.signals.watch.notified()).await;
        let ends = {
            let state = log.state.borrow();
            state.failed.is_some() || state.closing
        };
        if ends || log.check_there().await.is_some() {
            return;
        }
    }
}

impl Commitlog {
    /// Fails the log, and logs an error, if files of its run were removed, replaced or cut off.
    pub async fn check_there(&self) -> Option<String> {
        let lost = self.lost_file().await?;
        let why = format!("{lost} was removed, replaced or cut off while the node ran");
        self.fail(&why);
        Some(why)
    }

    /// A file of the run that has changed. A file that cannot be examined counts as unchanged.
    async fn lost_file(&self) -> Option<String> {
        let (active, live) = {
            let state = self.state.borrow();
            (state.active.clone(), state.ledger.ids().collect::<Vec<_>>())
        };
        if !active.file.is_in_place().await.unwrap_or(true) && self.is_live(active.id) {
            return Some(active.file.path().display().to_string());
        }
        if !self.synced_file.is_in_place().await.unwrap_or(true) {
            return Some(self.synced_file.path().display().to_string());
        }
        let of_run = [manifest::NAME, synced::NAME].map(|name| (None, self.run_dir.join(name), 0));
        let segments = live.into_iter().map(|id| {
            let least = if id == self.run { self.first_size } else { self.config.segment_size };
            (Some(id), segment_path(&self.run_dir, id), u64::from(least))
        });
        let files: Vec<_> = of_run.into_iter().chain(segments).collect();
        let paths = files.iter().map(|(_, path, _)| path.clone()).collect();
        let (_, lengths) = fs::read_and_measure(Vec::new(), paths).await;
        let lost = files.into_iter().zip(lengths).find(|((segment, _, least), found)| {
            let is_whole = match found {
                Ok(len) => len >= least,
                Err(error) => !fs::is_absence(error),
            };
            !is_whole && segment.is_none_or(|id| self.is_live(id))
        });
        lost.map(|((_, path, _), _)| path.display().to_string())
    }

    fn is_live(&self, segment: u64) -> bool {
        self.state.borrow().ledger.ids().any(|id| id == segment)
    }
}
