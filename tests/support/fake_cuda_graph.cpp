// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver: streams that are captured into graphs, and graphs that are launched.
#include "fake_cuda_state.hpp"

using namespace fake_cuda::inside;

namespace {

using context_pointer = std::shared_ptr<context>;
using stream_pointer = std::shared_ptr<stream>;

CUresult not_modelled(state& s, std::string const& what)
{
    s.violate(what + ", which is not modelled");
    return CUDA_ERROR_NOT_SUPPORTED;
}

template <class Graphs, class Handle>
CUresult give_up(char const* function, Graphs state::*of, Handle handle)
{
    return call(function, [&](state& s, guard&, std::string const& name) {
        if (!look_up(s, s.*of, handle, name))
            return CUDA_ERROR_INVALID_VALUE;
        (s.*of).erase(number_of(handle));
        s.given_up.insert(number_of(handle));
        return CUDA_SUCCESS;
    });
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
    auto const body = [&](state& s, guard&, std::string const& name, context_pointer const&,
                          stream_pointer const& found) {
        if (found->is_default)
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (found->captured != capture::none)
            return CUDA_ERROR_ILLEGAL_STATE;
        if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL)
            return not_modelled(s, name + " in another mode than the global one");
        found->captured = capture::active;
        found->captured_by = std::this_thread::get_id();
        return CUDA_SUCCESS;
    };
    return call_on_stream(__func__, handle, body);
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* into)
{
    auto const body = [&](state& s, guard&, std::string const&, context_pointer const&, stream_pointer const& found) {
        *into = nullptr;
        if (found->captured == capture::none)
            return CUDA_ERROR_ILLEGAL_STATE;
        if (found->captured_by != std::this_thread::get_id())
            return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
        auto nodes = std::exchange(found->nodes, {});
        if (std::exchange(found->captured, capture::none) == capture::invalidated)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        auto const made = s.new_handle();
        s.graphs[made] = std::make_shared<graph>(graph{found->of, std::move(nodes)});
        *into = handle_of<CUgraph>(made);
        return CUDA_SUCCESS;
    };
    return call_on_stream(__func__, handle, body, true);
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* into, CUgraph handle, unsigned long long flags)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        auto const found = look_up(s, s.graphs, handle, name);
        if (into == nullptr || !found)
            return CUDA_ERROR_INVALID_VALUE;
        if (flags != 0)
            return not_modelled(s, name + " with flags");
        auto const made = s.new_handle();
        s.executable_graphs[made] = std::make_shared<graph const>(*found);
        *into = handle_of<CUgraphExec>(made);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec graph_handle, CUstream handle)
{
    auto const body = [&](state& s, guard& lock, std::string const& name, context_pointer const&,
                          stream_pointer const& found) {
        auto const graph = look_up(s, s.executable_graphs, graph_handle, name);
        if (!graph)
            return CUDA_ERROR_INVALID_VALUE;
        if (found->captured != capture::none || found->of != graph->of)
            return not_modelled(s, name + " in a capture or in another context");
        for (auto const& node : graph->nodes)
            enqueue(s, lock, *found, node);
        return CUDA_SUCCESS;
    };
    return call_on_stream(__func__, handle, body);
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle)
{
    return give_up(__func__, &state::graphs, handle);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle)
{
    return give_up(__func__, &state::executable_graphs, handle);
}

}  // extern "C"
