//! Whether the files of a running log are where they were made.
//!
//! An operator, or a tool that cleans up, may remove, replace or cut off files of a log in use. Writes and syncs of the open files go on
//! succeeding, and what they bring is gone when the process ends. So a task looks at the run each second, and the stop does before it ends
//! the run. A log that is not whole fails: the node stops then, and flushes the memtables, which still have everything.
//!
//! Must never take a segment for lost that the keeper has removed: only segments that are live before and after the look count.

use super::log::Commitlog;
use super::manifest::{self, segment_path};
use super::synced;
use rt::fs;
use rt::time::Duration;
use std::rc::Rc;

/// How often the running log is looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// The task that looks at the run until the log ends.
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
    /// Fails the log if files of its run were removed, replaced or cut off, and says so.
    pub async fn check_there(&self) -> Option<String> {
        let lost = self.lost_file().await?;
        let why = format!("{lost} was removed, replaced or cut off while the node ran");
        self.fail(&why);
        Some(why)
    }

    /// A file of the run that is not what the log has made of it. What cannot be looked at counts as there.
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
