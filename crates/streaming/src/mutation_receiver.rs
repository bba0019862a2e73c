//! The receiver of a tablet that is streamed as mutations: asks for pages of fragments, and writes
//! each while the next one is on its way.

use crate::message::{Request, TabletSession};
use crate::metrics::add;
use crate::mutation_page::MutationPage;
use crate::receiver::{ReceiveError, Receiver, target_of};
use cluster::tablets::TabletReplica;
use engine::EngineError;
use engine::streaming::{ArrivedSource, Direction, IncomingMutations};
use futures_util::future::join;
use rt::time::Duration;
use uuid::Uuid;

/// How long a source may take to flush the tablet, or to read a page. Its throttle may have it
/// wait.
const READ: Duration = Duration::from_secs(3600);

impl Receiver {
    /// Receives what is missing of a source's tablet, as mutations.
    pub(crate) async fn receive_mutations(
        &self,
        what: &TabletSession,
        source: TabletReplica,
    ) -> Result<ArrivedSource, ReceiveError> {
        let mut incoming = self.engine().receive_mutations(target_of(what), source.host).await?;
        match self.write_pages(what, source, &mut incoming).await {
            Ok(()) => Ok(incoming.finish().await?),
            Err(error) => {
                incoming.abandon().await;
                Err(error)
            }
        }
    }

    async fn write_pages(
        &self,
        what: &TabletSession,
        source: TabletReplica,
        incoming: &mut IncomingMutations,
    ) -> Result<(), ReceiveError> {
        let attempt = rt::random::uuid_v4();
        let after = incoming.after().map(|key| key.key.to_vec());
        let mut page = self.page(what, source, attempt, after, 0).await?;
        incoming.expect(page.estimate).await?;
        let mut number = 0;
        loop {
            if page.schema != incoming.schema().version {
                return Err(ReceiveError::Refused("the schema of the table is changing".to_owned()));
            }
            let written = incoming.push(page.fragments);
            if page.is_last {
                return Ok(written.await?);
            }
            number += 1;
            let (written, next): (Result<(), EngineError>, _) =
                join(written, self.page(what, source, attempt, None, number)).await;
            written?;
            page = next?;
        }
    }

    async fn page(
        &self,
        what: &TabletSession,
        source: TabletReplica,
        attempt: Uuid,
        after: Option<Vec<u8>>,
        number: u64,
    ) -> Result<MutationPage, ReceiveError> {
        let request = Request::ReadMutations { what: self.now(what), attempt, after, number };
        let answer = self.call(source, request, READ).await?;
        self.check(what)?;
        let bytes = answer.len() as u64;
        let page = MutationPage::decode(answer).map_err(|why| ReceiveError::Answer(source.host, why))?;
        add(&self.counters.incoming_bytes, bytes);
        self.counters.streams.add(what.session, Direction::In, source.host, bytes);
        self.settings.throttle.wait(bytes).await;
        Ok(page)
    }
}
