//! Aggregates over all rows of a query: each owner reduces its own rows, all owners in parallel.
//!
//! Each tablet is read page by page. A page has the number of rows and their partial results
//! ([`replica::reduce`]). Otherwise these are pages like any others: consistency levels, digests
//! and reconciliation handle them in the same way.
//!
//! Each page is routed by the newest metadata, and holds it only until the page is complete. So a
//! long aggregate does not delay a wait for old metadata to become unused.

use super::page_counting::Counting;
use super::read::{self, PageRequest, Query, QueryPage, QueryPartitions};
use super::targets::Targets;
use super::window::WIDEST;
use super::{Coordinator, CoordinatorError, RequestOptions};
use futures_util::{StreamExt, stream};

/// The rows that an owner reduces for one page. It bounds the time of a page.
const ROWS_PER_PAGE: u64 = 100_000;

impl Coordinator {
    /// Reads all rows of a query whose output has no columns or is reduced. Returns the number of
    /// rows, and the partial results of all pages one after the other. The query has no limits.
    pub async fn reduce(&self, query: &Query, options: &RequestOptions) -> Result<QueryPage, CoordinatorError> {
        let mut parts = Vec::new();
        match &query.partitions {
            QueryPartitions::Keys(_) => parts.push(query.clone()),
            QueryPartitions::Range(_) => {
                let mut targets = Targets::new(query, None).ok_or(CoordinatorError::PagingState)?;
                while let Some((_, range)) = targets.next() {
                    parts.push(Query { partitions: QueryPartitions::Range(range), ..query.clone() });
                }
            }
        }
        let reading = parts.into_iter().map(|part| Box::pin(self.reduce_part(part, options)));
        let mut reading = stream::iter(reading).buffered(WIDEST);
        let mut whole = QueryPage::default();
        while let Some(part) = reading.next().await {
            append(&mut whole, part?);
        }
        Ok(whole)
    }

    async fn reduce_part(&self, mut query: Query, options: &RequestOptions) -> Result<QueryPage, CoordinatorError> {
        let mut whole = QueryPage::default();
        let (mut state, mut counting) = (None, Counting::Page);
        loop {
            let wanted = PageRequest { size: Some(ROWS_PER_PAGE), state, budget: None, counting };
            let mut page = self.read_with_newest(&mut query, &wanted, options).await?;
            (state, counting) = (page.next.take(), Counting::PartOfFirst { asked: page.asked });
            append(&mut whole, page);
            if state.is_none() {
                return Ok(whole);
            }
            rt::task::yield_now().await;
        }
    }

    /// Reads a page of a query that may have been planned by older metadata. The page is routed by
    /// the newest metadata, and holds it only until the page is complete.
    pub async fn read_with_newest(
        &self,
        query: &mut Query,
        page: &PageRequest,
        options: &RequestOptions,
    ) -> Result<QueryPage, CoordinatorError> {
        let metadata = self.metadata();
        let newest = metadata.table_by_id(query.table.schema.id).ok_or(CoordinatorError::NoSuchTable)?;
        if newest.tablets.count() == query.table.tablets.count() {
            query.table = newest.clone();
        }
        let options = options.routed_by(metadata.number);
        // Each request to a replica holds the metadata itself, and releases it when it turns out
        // to be outdated.
        drop(metadata);
        self.read(query, page, &options).await
    }
}

fn append(whole: &mut QueryPage, page: QueryPage) {
    whole.rows += page.rows;
    read::append(&mut whole.body, page.body);
    whole.info = whole.info.then(page.info);
}
