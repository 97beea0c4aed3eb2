// The parameter struct and the arithmetic of the kernels of softmax gradients, and rows as pairs of vectors of 16
// bytes.
#pragma once

#include "dtype.cuh"
#include "index.cuh"
#include "ptx/global.cuh"
#include "reduce.cuh"
#include "row_views.cuh"
#include "softmax.cuh"

// Mirrored by BackwardParams in src/cuda/plan/softmax_backward/params.rs. The dimensions come last, and a kernel
// declares only as many of them as it can use: a launch copies only the declared ones.
template <int Rank> struct BackwardParams {
    uint64_t grad, output, out;  // addresses
    uint64_t rows;
    uint64_t length;                                 // elements per row
    uint64_t tiles;                                  // units of work, each a block's
    int64_t grad_stride, output_stride, out_stride;  // along a row
    uint32_t log;                                    // of log_softmax
    uint32_t lane_bits;                              // warp: 2^this lanes per row
    uint32_t output_access, out_access;              // 0 if loads of output, or stores, must be element-wise
    uint32_t in_tag, out_tag;
    uint32_t rank;        // at least 1
    uint32_t slices;      // of a row, each a block's
    uint64_t slice_size;  // long, partial, combine: batches of V vectors per thread. smem: accesses of the result
    uint64_t partials;    // partial, combine: address of the sum of every slice of every row
    Dim<3> dims[Rank];    // over rows; strides of grad, output and out
};
static_assert(sizeof(BackwardParams<INLINE_RANK>) == 120 + 48 * INLINE_RANK, "");
static_assert(sizeof(BackwardParams<MAX_RANK>) == 120 + 48 * MAX_RANK && sizeof(BackwardParams<MAX_RANK>) < 4096, "");

// The gradient of x from gradient and value of the result. In decides the arithmetic type, float or double; Out decides
// how precise exponentials are.
template <class In, class Out> struct Gradient {
    using C = typename Math<In>::C;
    bool log;

    // Adds the terms of the row's sum; each of the N elements has a sum of its own.
    template <int N> __device__ __forceinline__ void accumulate(const C (&grad)[N], const C (&output)[N],
                                                                C (&sum)[N]) const {
        if (log) {
#pragma unroll
            for (int k = 0; k < N; ++k) sum[k] += grad[k];
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) sum[k] = multiply_add(grad[k], output[k], sum[k]);
        }
    }
    template <int N>
    __device__ __forceinline__ Pack<Out, N> results(const C (&grad)[N], const C (&output)[N], const C (&sum)[N]) const {
        Pack<Out, N> out;
        if (log) {
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const C probability = static_cast<C>(Math<Out>::exp(output[k]));
                out.v[k] = convert<Out>(multiply_add(-probability, sum[k], grad[k]));
            }
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) out.v[k] = convert<Out>(output[k] * (grad[k] - sum[k]));
        }
        return out;
    }
};

// As `opaque` in softmax.cuh.
__device__ __forceinline__ int opaque(int v) { return v ^ static_cast<int>(threadIdx.y); }
__device__ __forceinline__ int64_t opaque(int64_t v) { return v ^ threadIdx.y; }

// A row of grad, output and result, in vectors of grad. Elements outside of the row read as 0.
template <class In, class Out, class Index> struct GradientRow : Vectors<In, Index> {
    using Base = Vectors<In, Index>;
    using Base::E;
    using Base::first;
    using Base::length;
    using Base::whole;
    const In* grad;
    const In* output;
    Out* out;

    __device__ __forceinline__ GradientRow() {}
    // A row without elements if the index is past the last row.
    template <int Rank> __device__ __forceinline__ GradientRow(const BackwardParams<Rank>& p, uint64_t row) {
        length = row < p.rows ? p.length : 0;
        if (row >= p.rows) row = 0;
        const auto o = locate(p.dims, p.rank, row);
        grad = reinterpret_cast<const In*>(p.grad) + o.at[0];
        output = reinterpret_cast<const In*>(p.output) + o.at[1];
        out = reinterpret_cast<Out*>(p.out) + o.at[2];
        this->offset = offset_in_vector(grad);
    }

    // Whether a vector may need `complete`.
    __device__ __forceinline__ bool incomplete(uint32_t output_access) const {
        return this->offset != 0 || length % E != 0 || output_access == 0;
    }
    // Loads whole vectors, without a branch, so that the loads of many vectors can be issued before the first is waited
    // for.
    __device__ __forceinline__ void load(Index vector, uint32_t output_access, Vector& g, Vector& y) const {
        const Index i = first(vector);
        g = y = Vector{};
        ptx::load_global_if<16>(whole(i), grad + i, g.word);
        ptx::load_global_if<16>(whole(i) && output_access != 0, output + i, y.word);
    }
    // Loads the elements of all other vectors one by one.
    __device__ __forceinline__ void complete(Index vector, uint32_t output_access, Vector& g, Vector& y) const {
        const Index i = first(vector);
        if (i >= length || (whole(i) && output_access != 0)) return;
        auto grads = g.unpack<In>(), outputs = y.unpack<In>();
#pragma unroll
        for (int k = 0; k < E; ++k) {
            if (i + k >= 0 && i + k < length) {
                if (!whole(i)) grads.v[k] = grad[i + k];
                outputs.v[k] = output[i + k];
            }
        }
        g = Vector::of(grads);
        y = Vector::of(outputs);
    }
    __device__ __forceinline__ void store(Index vector, const Pack<Out, E>& pack, uint32_t out_access) const {
        Base::store(out, vector, pack, out_access != 0);
    }
};
