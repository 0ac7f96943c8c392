//! Binds of memory windows, by queue pairs of this tier.
#![forbid(unsafe_code)]

use super::queue_pair::QueuePair;
use crate::verbs::{MemoryWindow, MemoryWindowBind, Result, Rkey};

impl QueuePair {
    /// Posts a bind of a window of type 1 and returns its new key; see
    /// [`verbs::QueuePair::bind_mw`](crate::verbs::QueuePair::bind_mw). The request has no buffer: windows are bound to
    /// a [`MemoryRegion`](crate::verbs::MemoryRegion), because peers never reach a buffer. It comes back from the
    /// completion queue in order, with [`RequestBuffer::None`](super::RequestBuffer::None) and the `wr_id` of `bind`.
    ///
    /// The window and the region are borrowed only for the call. Dropping the window later invalidates its key, and
    /// dropping the region invalidates its windows.
    ///
    /// # Errors
    /// The window is of type 2; otherwise, as for [`QueuePair::post_send`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, Request};
    /// # use rdma_verbs::verbs::{self, AccessFlags, MemoryWindowBind, MemoryWindowType};
    /// # let context = verbs::open("soft:127.45.1.23")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 16)?;
    /// # let qp = QueuePair::new(&pd, &cq, &cq)?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// # let pool = BufferPool::new(&pd, 1 << 20)?;
    /// let region = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND)?;
    /// let window = pd.alloc_mw(MemoryWindowType::Type1)?;
    /// let bind = MemoryWindowBind::new(region.slice(8..16)?, AccessFlags::REMOTE_WRITE).wr_id(1);
    /// let remote = bind.remote(qp.bind_mw(&window, &bind)?);
    /// qp.post_send(Request::write(pool.copy_from(b"hello")?, remote).wr_id(2).signaled())?;
    ///
    /// let bound = cq.wait(Duration::from_secs(10))?;
    /// assert_eq!((bound.wr_id(), bound.request_buffer().capacity()), (1, 0));
    /// cq.wait(Duration::from_secs(10))?.into_buffer()?;
    /// assert_eq!(region.to_vec(8..13)?, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind_mw(&self, window: &MemoryWindow, bind: &MemoryWindowBind<'_>) -> Result<Rkey> {
        self.posted().bind_mw(window, None, bind)
    }

    /// Posts a bind of a window of type 2, like [`QueuePair::bind_mw`] for type 1. Its new key is
    /// [`MemoryWindow::rkey_with`] `tag`. Before the window can be bound again, its key must be invalidated:
    /// [`Request::local_invalidate`](super::Request::local_invalidate).
    ///
    /// # Errors
    /// The window is of type 1; otherwise, as for [`QueuePair::post_send`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_verbs::owned::{BufferPool, CompletionQueue, QueuePair, Request};
    /// # use rdma_verbs::verbs::{self, AccessFlags, MemoryWindowBind, MemoryWindowType};
    /// # let context = verbs::open("soft:127.45.1.24")?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = CompletionQueue::new(&context, 16)?;
    /// # let qp = QueuePair::new(&pd, &cq, &cq)?;
    /// # qp.connect(&qp.connection_info()?)?; // to itself
    /// # let pool = BufferPool::new(&pd, 1 << 20)?;
    /// # let region = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MEMORY_WINDOW_BIND)?;
    /// let window = pd.alloc_mw(MemoryWindowType::Type2)?;
    /// let bind = MemoryWindowBind::new(&region, AccessFlags::REMOTE_WRITE);
    /// let key = qp.bind_mw_type2(&window, 1, &bind)?;
    /// qp.post_send(Request::write(pool.copy_from(b"hello")?, bind.remote(key)))?;
    /// qp.post_send(Request::local_invalidate(key).wr_id(3).signaled())?;
    /// while cq.wait(Duration::from_secs(10))?.wr_id() != 3 {}
    /// assert_eq!(region.to_vec(..5)?, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind_mw_type2(&self, window: &MemoryWindow, tag: u8, bind: &MemoryWindowBind<'_>) -> Result<Rkey> {
        self.posted().bind_mw(window, Some(tag), bind)
    }
}
