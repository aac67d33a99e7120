/* Python module mmf_win.archives._zipcrypto: runs the kernels on spans of a bytearray. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

static const struct zipcrypto_kernel *find_kernel(const char *name)
{
    for (const struct zipcrypto_kernel *kernel = zipcrypto_kernels; kernel->name != NULL; kernel++)
        if (strcmp(kernel->name, name) == 0 && kernel->supported())
            return kernel;
    return NULL;
}

/* Fills a stream from (start, size, (key0, key1, key2)); a span must be inside the data. */
static int parse_span(PyObject *span, char *data, Py_ssize_t length, struct zipcrypto_stream *stream)
{
    Py_ssize_t start, size;
    unsigned int key0, key1, key2;
    if (!PyTuple_Check(span)) {
        PyErr_SetString(PyExc_TypeError, "a span must be a tuple (start, size, keys)");
        return -1;
    }
    if (!PyArg_ParseTuple(span, "nn(III)", &start, &size, &key0, &key1, &key2))
        return -1;
    if (start < 0 || size < 0 || start > length || size > length - start) {
        PyErr_SetString(PyExc_ValueError, "a span is outside the data");
        return -1;
    }
    stream->at = (uint8_t *)data + start;
    stream->left = (size_t)size;
    stream->keys.key0 = key0;
    stream->keys.key1 = key1;
    stream->keys.key2 = key2;
    return 0;
}

static PyObject *keys_of(const struct zipcrypto_stream *streams, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        const struct zipcrypto_keys *keys = &streams[i].keys;
        PyObject *item = Py_BuildValue("(III)", keys->key0, keys->key1, keys->key2);
        if (item == NULL || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

PyDoc_STRVAR(decrypt_doc,
             "decrypt(data, spans, kernel, /)\n--\n\n"
             "Decrypt spans of a bytearray in place, in parallel, without the GIL.\n\n"
             "Spans are tuples (start, size, (key0, key1, key2)) and must not overlap; the largest should come\n"
             "first. Return the final keys of each span. No other thread may use the spans during the call.\n\n"
             "Raise ValueError for a span outside the data and for an unknown kernel.");

static PyObject *decrypt(PyObject *module, PyObject *arguments)
{
    PyObject *data, *spans, *view = NULL, *result = NULL;
    const char *name;
    const struct zipcrypto_kernel *kernel;
    struct zipcrypto_stream *streams = NULL;
    Py_ssize_t count, length;
    (void)module;

    if (!PyArg_ParseTuple(arguments, "O!O!s", &PyByteArray_Type, &data, &PyList_Type, &spans, &name))
        return NULL;
    kernel = find_kernel(name);
    if (kernel == NULL)
        return PyErr_Format(PyExc_ValueError, "unknown kernel '%s'", name);

    view = PyMemoryView_FromObject(data); /* a bytearray with a view cannot be resized */
    if (view == NULL)
        return NULL;
    length = PyByteArray_Size(data);
    count = PyList_Size(spans);
    streams = PyMem_Malloc((size_t)(count > 0 ? count : 1) * sizeof *streams);
    if (streams == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *span = PyList_GetItem(spans, i);
        int parsed = -1;
        if (span != NULL) {
            Py_INCREF(span); /* the __index__ of a malicious object might remove it from the list */
            parsed = parse_span(span, PyByteArray_AsString(data), length, &streams[i]);
            Py_DECREF(span);
        }
        if (parsed < 0)
            goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    zipcrypto_decrypt(kernel, streams, (size_t)count);
    Py_END_ALLOW_THREADS
    result = keys_of(streams, count);
done:
    PyMem_Free(streams);
    Py_DECREF(view);
    return result;
}

PyDoc_STRVAR(kernels_doc, "kernels()\n--\n\nReturn the names of the kernels that this processor can run, fastest first.");

static PyObject *kernels(PyObject *module, PyObject *unused)
{
    PyObject *names = PyList_New(0);
    (void)module;
    (void)unused;
    for (const struct zipcrypto_kernel *kernel = zipcrypto_kernels; names && kernel->name; kernel++) {
        PyObject *name;
        if (!kernel->supported())
            continue;
        name = PyUnicode_FromString(kernel->name);
        if (name == NULL || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyMethodDef methods[] = {
    {"decrypt", decrypt, METH_VARARGS, decrypt_doc},
    {"kernels", kernels, METH_NOARGS, kernels_doc},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    (void)module;
    zipcrypto_init();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)prepare},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_zipcrypto",
    "ZipCrypto decryption of many streams in parallel.",
    0,
    methods,
    slots,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__zipcrypto(void)
{
    return PyModuleDef_Init(&definition);
}
