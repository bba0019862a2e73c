//! The report that this node sends with every answer to a ping: whether it serves clients, its
//! schema version, and the state of its disks. A node without others reports nothing. On shard 0.

use cluster::MetadataService;
use cluster::observe::storage::{self, DiskState};
use engine::Engine;
use internode::{Internode, SelfReport};
use rt::shard::PerShard;
use rt::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

/// How often the state of the disks is determined.
const LOOK: Duration = Duration::from_secs(5);

/// Reported values that cannot be computed at once.
#[derive(Debug, Default)]
pub struct Report {
    serving: Cell<bool>,
    disks: Cell<DiskState>,
}

/// Starts to report. The node does not serve clients yet.
pub fn begin(
    reports: PerShard<Report>,
    internode: &Internode,
    metadata: PerShard<MetadataService>,
    engines: PerShard<Engine>,
) {
    let report = Rc::new(Report::default());
    reports.set(report.clone());
    rt::task::spawn(keep_disks(report.clone(), engines)).detach();
    internode.report_with(move || {
        let DiskState { load_bytes, no_space, unreadable } = report.disks.get();
        SelfReport {
            serving: report.serving.get(),
            schema: metadata.try_get().map_or_else(Default::default, |all| all.current().version),
            load_bytes,
            no_space,
            unreadable,
            stopping: false,
        }
    });
}

impl Report {
    /// Sets whether this node serves clients.
    pub fn set_serving(&self, serving: bool) {
        self.serving.set(serving);
    }
}

async fn keep_disks(report: Rc<Report>, engines: PerShard<Engine>) {
    loop {
        report.disks.set(storage::disk_state(engines).await);
        if rt::time::timeout(LOOK, rt::shard::stopping().cancelled()).await.is_ok() {
            return;
        }
    }
}
