//! The function tables that the headers' inline functions call. They refer to the files of all objects, and only the
//! code that opens a device needs them.

use rdma_verbs::provider::abi;

use crate::{
    completion_queue, completion_queue_ex, device_memory, memory_region, memory_window, modify, parent_domain, port,
    post, queue_pair_init, shared_receive, xrc,
};

/// Sets the operations that programs call through the tables.
pub(crate) fn set_operations(table: &mut abi::VerbsContext) {
    set_basic_operations(&mut table.context.ops);
    set_extended_operations(table);
}

fn set_basic_operations(ops: &mut abi::ContextOps) {
    ops.alloc_mw = Some(memory_window::alloc_mw);
    ops.bind_mw = Some(memory_window::bind_mw);
    ops.dealloc_mw = Some(memory_window::dealloc_mw);
    ops.poll_cq = Some(completion_queue::poll_cq);
    ops.req_notify_cq = Some(completion_queue::req_notify_cq);
    ops.post_srq_recv = Some(shared_receive::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
}

/// Sets the extended operations. The headers' own functions return `EOPNOTSUPP` for a missing one.
fn set_extended_operations(table: &mut abi::VerbsContext) {
    table.query_port = Some(port::query_port);
    table.query_device_ex = Some(port::query_device_ex);
    table.query_rt_values = Some(port::query_rt_values);
    table.advise_mr = Some(memory_region::advise_mr);
    table.reg_dm_mr = Some(device_memory::reg_dm_mr);
    table.alloc_dm = Some(device_memory::alloc_dm);
    table.free_dm = Some(device_memory::free_dm);
    table.alloc_td = Some(parent_domain::alloc_td);
    table.dealloc_td = Some(parent_domain::dealloc_td);
    table.alloc_parent_domain = Some(parent_domain::alloc_parent_domain);
    table.create_cq_ex = Some(completion_queue_ex::create_cq_ex);
    table.modify_cq = Some(completion_queue::modify_cq);
    table.create_qp_ex = Some(queue_pair_init::create_qp_ex);
    table.modify_qp_rate_limit = Some(modify::modify_qp_rate_limit);
    table.create_srq_ex = Some(shared_receive::create_srq_ex);
    table.get_srq_num = Some(shared_receive::get_srq_num);
    table.open_xrcd = Some(xrc::open_xrcd);
    table.close_xrcd = Some(xrc::close_xrcd);
}
