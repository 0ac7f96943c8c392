//! ATOMIC WRITE, and the requests that have no buffer: FLUSH, local invalidate and binds of memory windows.

use super::queue_pair::{QueuePair, outcome};
use super::{IntoRequestBuffer, RequestError};
use crate::owned::{self, Request};
use crate::verbs::{FlushFlags, MemoryWindow, MemoryWindowBind, RemoteMemory, Result, Rkey, Success};

impl QueuePair {
    /// Writes the buffer's filled part, 8 bytes, to the start of `remote` in one store; see
    /// [`Request::atomic_write`].
    pub async fn atomic_write<B: IntoRequestBuffer>(
        &self,
        buffer: B,
        remote: RemoteMemory,
    ) -> (Result<Success, RequestError>, B) {
        self.typed(Request::atomic_write(buffer, remote)).await
    }

    /// Waits until all earlier writes to `remote`, from any source, are globally visible at the peer or persistent, as
    /// `flags` specifies; see [`Request::flush`]. "Earlier" means posted before: a request is posted when its future is
    /// first polled.
    ///
    /// # Errors
    /// The request was refused or failed: see [`RequestError`].
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # use rdma_verbs::asynchronous::{CompletionQueue, QueuePair, QueuePairOptions};
    /// # use rdma_verbs::owned::BufferPool;
    /// # use rdma_verbs::verbs::{self, AccessFlags, FlushFlags};
    /// # let context = verbs::open("soft:127.45.1.25")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 64)?;
    /// let access = AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL;
    /// let qp = QueuePair::with_options(&pd, &cq, &QueuePairOptions::default().access(access))?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// # let pool = BufferPool::new(&pd, 1 << 20)?;
    /// let log = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH_GLOBAL)?;
    /// let (written, flushed) = tokio::join!(
    ///     qp.write(pool.copy_from(b"entry")?, log.remote()),
    ///     qp.flush(log.remote(), FlushFlags::GLOBAL),
    /// );
    /// written.0?;
    /// flushed?;
    /// assert_eq!(log.to_vec(..5)?, b"entry");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn flush(&self, remote: RemoteMemory, flags: FlushFlags) -> Result<Success, RequestError> {
        self.execute(Request::flush(remote, flags)).await.0
    }

    /// Invalidates a local key; see [`Request::local_invalidate`].
    ///
    /// # Errors
    /// The request was refused or failed: see [`RequestError`].
    pub async fn local_invalidate(&self, rkey: Rkey) -> Result<Success, RequestError> {
        self.execute(Request::local_invalidate(rkey)).await.0
    }

    /// Binds a window of type 1 and returns its new key; see [`owned::QueuePair::bind_mw`]. The `wr_id` of `bind` is
    /// replaced, and the request is signaled. A bind whose future is dropped after it was posted is still executed.
    ///
    /// # Errors
    /// The window is of type 2; the request was refused or failed: see [`RequestError`].
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # use rdma_verbs::asynchronous::{CompletionQueue, QueuePair};
    /// # use rdma_verbs::owned::BufferPool;
    /// # use rdma_verbs::verbs::{self, AccessFlags, MemoryWindowBind, MemoryWindowType};
    /// # let context = verbs::open("soft:127.45.1.26")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 64)?;
    /// # let qp = QueuePair::new(&pd, &cq)?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// # let pool = BufferPool::new(&pd, 1 << 20)?;
    /// let region = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND)?;
    /// let window = pd.alloc_mw(MemoryWindowType::Type1)?;
    /// let bind = MemoryWindowBind::new(region.slice(8..16)?, AccessFlags::REMOTE_WRITE);
    /// let remote = bind.remote(qp.bind_mw(&window, &bind).await?);
    /// qp.write(pool.copy_from(b"hello")?, remote).await.0?;
    /// assert_eq!(region.to_vec(8..13)?, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn bind_mw(&self, window: &MemoryWindow, bind: &MemoryWindowBind<'_>) -> Result<Rkey, RequestError> {
        self.bind(bind, |qp, bind| qp.bind_mw(window, bind)).await
    }

    /// Binds a window of type 2 and returns its new key, [`MemoryWindow::rkey_with`] `tag`; otherwise like
    /// [`QueuePair::bind_mw`].
    ///
    /// # Errors
    /// The window is of type 1; the request was refused or failed: see [`RequestError`].
    pub async fn bind_mw_type2(
        &self,
        window: &MemoryWindow,
        tag: u8,
        bind: &MemoryWindowBind<'_>,
    ) -> Result<Rkey, RequestError> {
        self.bind(bind, |qp, bind| qp.bind_mw_type2(window, tag, bind)).await
    }

    async fn bind(
        &self,
        bind: &MemoryWindowBind<'_>,
        post: impl FnOnce(&owned::QueuePair, &MemoryWindowBind<'_>) -> Result<Rkey>,
    ) -> Result<Rkey, RequestError> {
        let (ticket, wr_id) = self.claim_send().await;
        let key = post(self.owned(), &bind.wr_id(wr_id).signaled())?;
        outcome(ticket.posted().await).0?;
        Ok(key)
    }
}
