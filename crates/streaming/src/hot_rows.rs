//! Reads the rows of a received tablet in that its sources read often.

use crate::message::{HotKeys, Request, TabletSession};
use crate::metrics::add;
use crate::receiver::{ReceiveError, Receiver};
use bytes::Bytes;
use cluster::tablets::TabletReplica;
use rt::time::Duration;

/// How long rows are read in at most. The move of the tablet waits for it.
const LONGEST: Duration = Duration::from_secs(10);
/// How long a source may take to send its keys.
const ASK: Duration = Duration::from_secs(2);
/// Between so many rows, it checks whether the session is still open.
const STRETCH: usize = 256;

impl Receiver {
    /// Reads in the hot rows of a tablet that has arrived. A failure only leaves rows out: the
    /// tablet is complete.
    pub async fn read_in_hot_rows(&self, what: &TabletSession, from: &[TabletReplica]) {
        let (began, mut rows) = (rt::time::now(), 0);
        let reading = async {
            for source in from {
                let keys = self.hot_keys(what, *source).await?;
                for some in keys.chunks(STRETCH) {
                    self.check(what)?;
                    let read = self.engine().read_in(what.table, some).await;
                    read.map_err(|error| ReceiveError::Refused(error.to_string()))?;
                    rows += some.len();
                }
            }
            Ok::<(), ReceiveError>(())
        };
        let ended = rt::time::timeout(LONGEST, reading).await;
        let failure = match ended {
            Ok(read) => read.err().map(|error| error.to_string()),
            Err(_) => Some(format!("not within {LONGEST:?}")),
        };
        tracing::debug!(session = %what.session, table_id = %what.table, tablet = what.tablet, rows, failure,
            took = ?began.elapsed(), "rows that are often read were read into the cache");
        add(&self.counters.hot_rows, rows as u64);
    }

    async fn hot_keys(&self, what: &TabletSession, source: TabletReplica) -> Result<Vec<Bytes>, ReceiveError> {
        let answer = self.call(source, Request::HotKeys(self.now(what)), ASK).await?;
        let keys = HotKeys::decode(&answer).map_err(|why| ReceiveError::Answer(source.host, why))?;
        Ok(keys.0.into_iter().map(Bytes::from).collect())
    }
}
