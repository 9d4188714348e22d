/* A round of federated averaging: linear layers, ReLU and cross-entropy, at most 16 classes. with_c.py compiles it,
 * and defines SIZES (inputs, units, classes), WEIGHTS (all numbers), BATCH and STEPS. A row of weights ends with its
 * bias and an example with a one; zeros fill the last vector of both. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef float vector __attribute__((vector_size(64), may_alias));
static const int size[] = {SIZES};
enum { LANES = 16, BLOCK = 5, LAYERS = sizeof size / sizeof *size - 1, WIDEST = 256 };
typedef float row[WIDEST]; /* of an example: its values in a layer, then their derivatives */
#define VECTORS(layer) (size[layer] / LANES + 1)
#define EACH(i, n) _Pragma("GCC unroll 32") for (int i = 0; i < (n); i++)

/* value[b][o] = <w[o], in[b]>; a block's 25 sums stay in registers. */
static inline void forward(const vector **in, int vectors, const vector *w, int outputs, row *value) {
    for (int b = 0; b < BATCH; b += BLOCK)
        for (int o = 0; o < outputs; o += BLOCK) {
            vector sum[BLOCK][BLOCK] = {0};
            for (int i = 0; i < vectors; i++)
                EACH(p, BLOCK) EACH(q, BLOCK) sum[p][q] += in[b + p][i] * w[(o + q) * vectors + i];
            EACH(p, BLOCK) EACH(q, BLOCK) {
                float total = 0;
                EACH(k, LANES) total += sum[p][q][k];
                value[b + p][o + q] = total;
            }
        }
}

/* The derivatives with respect to a layer's inputs. */
static inline void backward(const vector *w, int vectors, int outputs, row *error, row *to) {
    for (int i = 0; i < vectors; i++) {
        vector sum[BATCH] = {0};
        for (int o = 0; o < outputs; o++) EACH(b, BATCH) sum[b] += error[b][o] * w[o * vectors + i];
        EACH(b, BATCH) *(vector *)&to[b][i * LANES] = sum[b];
    }
}

/* w[o] -= rate sum_b error[b][o] in[b], two outputs at a time. */
static inline void update(const vector **in, int vectors, vector *w, int outputs, row *error, float rate) {
    for (int o = 0; o < outputs; o += 2) {
        vector *v = w + o * vectors, *u = v + vectors;
        float e[BATCH], f[BATCH];
        EACH(b, BATCH) e[b] = rate * error[b][o], f[b] = rate * error[b][o + 1];
        for (int i = 0; i < vectors; i++) EACH(b, BATCH) v[i] -= e[b] * in[b][i], u[i] -= f[b] * in[b][i];
    }
}

/* Replace logits by the derivatives of the mean cross-entropy. GCC calls the exponential of vectors if not inlined. */
static __attribute__((noinline)) void softmax_error(float *z, int classes, int label) {
    float largest = z[0], total = 0;
    for (int c = 1; c < classes; c++) largest = fmaxf(largest, z[c]);
    for (int c = 0; c < LANES; c++) z[c] = expf(z[c] - largest);
    for (int c = 0; c < classes; c++) total += z[c];
    for (int c = 0; c < classes; c++) z[c] = (z[c] / total - (c == label)) / BATCH;
}

/* Do all steps of a client with n examples x of classes y, in reshuffled passes; changes the weights w. */
static void train(vector *w, const vector *x, const int *y, int n, float rate, unsigned seed) {
    _Alignas(64) row value[LAYERS + 1][BATCH] = {0}, error[BATCH];
    const vector *in[LAYERS][BATCH];
    int order[n];
    EACH(l, LAYERS) EACH(b, BATCH) in[l][b] = (vector *)value[l][b];
    for (int i = 0; i < n; i++) order[i] = i;
    for (int step = 0, at = 0; step < STEPS; step++, at = at + 2 * BATCH > n ? 0 : at + BATCH) {
        EACH(b, BATCH) {
            int j = at + b + rand_r(&seed) % (n - at - b), drawn = order[j];
            order[j] = order[at + b], order[at + b] = drawn;
            in[0][b] = x + drawn * VECTORS(0);
        }
        vector *layer = w;
        EACH(l, LAYERS) {
            forward(in[l], VECTORS(l), layer, size[l + 1], value[l + 1]);
            layer += size[l + 1] * VECTORS(l);
            if (l < LAYERS - 1) EACH(b, BATCH) {
                float *unit = value[l + 1][b];
                for (int o = 0; o < size[l + 1]; o++) unit[o] = fmaxf(unit[o], 0);
                unit[size[l + 1]] = 1;
            }
        }
        EACH(b, BATCH) softmax_error(value[LAYERS][b], size[LAYERS], y[order[at + b]]);
        for (int l = LAYERS - 1; l >= 0; l--) {
            layer -= size[l + 1] * VECTORS(l);
            if (l) backward(layer, VECTORS(l), size[l + 1], value[l + 1], error);
            update(in[l], VECTORS(l), layer, size[l + 1], value[l + 1], rate);
            if (l) EACH(b, BATCH) for (int o = 0; o < VECTORS(l) * LANES; o++)
                value[l][b][o] = value[l][b][o] > 0 ? error[b][o] : 0;
        }
    }
}

/* Replace the weights by the mean of the chosen clients', weighted by their numbers of examples. */
void average(float *weights, const vector *x, const int *y, const long *ends, const int *chosen, int clients,
             float rate, unsigned seed) {
    float sum[WEIGHTS] = {0}, total = 0;
#pragma omp parallel for reduction(+ : sum, total)
    for (int k = 0; k < clients; k++) {
        _Alignas(64) float w[WEIGHTS];
        long first = chosen[k] ? ends[chosen[k] - 1] : 0, n = ends[chosen[k]] - first;
        memcpy(w, weights, sizeof w);
        train((vector *)w, x + first * VECTORS(0), y + first, n, rate, seed + k);
        for (int i = 0; i < WEIGHTS; i++) sum[i] += n * w[i];
        total += n;
    }
    for (int i = 0; i < WEIGHTS; i++) weights[i] = sum[i] / total;
}
