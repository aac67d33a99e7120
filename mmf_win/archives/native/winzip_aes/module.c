/* The Python module mmf_win.archives._winzip_aes: the keys of WinZip's AES encryption, and its cipher. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "aes_ctr.h"
#include "pbkdf2.h"

static const struct pbkdf2_kernel *find_kernel(const char *name)
{
    for (const struct pbkdf2_kernel *kernel = pbkdf2_kernels; kernel->name != NULL; kernel++)
        if (strcmp(kernel->name, name) == 0 && kernel->supported())
            return kernel;
    return NULL;
}

PyDoc_STRVAR(derive_doc,
             "derive(password, salts, size, rounds, kernel, /)\n--\n\n"
             "PBKDF2-HMAC-SHA1 of a password with each salt, side by side, without the GIL.\n\n"
             "Returns one key of `size` bytes for each salt.\n\n"
             "Raises ValueError for a password of more than 64 bytes, a salt of more than 51, a size or a number of\n"
             "rounds that is not positive, and a kernel that kernels() does not name.");

static PyObject *derive(PyObject *module, PyObject *arguments)
{
    const char *bytes, *name;
    Py_ssize_t bytes_size, count, size, blocks;
    int rounds;
    PyObject *salts, *result = NULL;
    const struct pbkdf2_kernel *kernel;
    struct pbkdf2_password password;
    struct pbkdf2_chain *chains = NULL;
    uint8_t *held = NULL, *keys = NULL; /* the salts, in case somebody empties the list, and the keys */
    (void)module;

    if (!PyArg_ParseTuple(arguments, "y#O!nis", &bytes, &bytes_size, &PyList_Type, &salts, &size, &rounds, &name))
        return NULL;
    kernel = find_kernel(name);
    if (kernel == NULL)
        return PyErr_Format(PyExc_ValueError, "there is no kernel '%s' here", name);
    if (bytes_size > PBKDF2_MOST_KEY || size < 1 || size > 1 << 16 || rounds < 1) {
        PyErr_SetString(PyExc_ValueError, "the password, the size or the number of rounds is out of bounds");
        return NULL;
    }
    count = PyList_Size(salts);
    blocks = (size + PBKDF2_BLOCK - 1) / PBKDF2_BLOCK;
    chains = PyMem_Calloc((size_t)(count * blocks) + 1, sizeof *chains);
    held = PyMem_Calloc((size_t)count + 1, PBKDF2_MOST_SALT);
    keys = PyMem_Calloc((size_t)(count * blocks) + 1, PBKDF2_BLOCK);
    if (chains == NULL || held == NULL || keys == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        char *salt;
        Py_ssize_t salt_size;
        if (PyBytes_AsStringAndSize(PyList_GetItem(salts, i), &salt, &salt_size) < 0)
            goto done;
        if (salt_size > PBKDF2_MOST_SALT) {
            PyErr_SetString(PyExc_ValueError, "a salt is too long");
            goto done;
        }
        memcpy(held + i * PBKDF2_MOST_SALT, salt, (size_t)salt_size);
        for (Py_ssize_t block = 0; block < blocks; block++) {
            struct pbkdf2_chain *chain = &chains[i * blocks + block];
            chain->salt = held + i * PBKDF2_MOST_SALT;
            chain->salt_size = (size_t)salt_size;
            chain->number = (uint32_t)block + 1;
            chain->key = keys + (i * blocks + block) * PBKDF2_BLOCK;
        }
    }
    pbkdf2_set_password(&password, (const uint8_t *)bytes, (size_t)bytes_size);
    Py_BEGIN_ALLOW_THREADS
    pbkdf2_derive(kernel, &password, (unsigned)rounds, chains, (size_t)(count * blocks));
    Py_END_ALLOW_THREADS
    result = PyList_New(count);
    for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
        PyObject *key = PyBytes_FromStringAndSize((const char *)keys + i * blocks * PBKDF2_BLOCK, size);
        if (key == NULL || PyList_SetItem(result, i, key) < 0)
            Py_CLEAR(result);
    }
done:
    PyMem_Free(chains);
    PyMem_Free(held);
    PyMem_Free(keys);
    return result;
}

PyDoc_STRVAR(decrypt_doc,
             "decrypt(data, start, size, key, counter, /)\n--\n\n"
             "Decrypt `size` bytes of a bytearray in place, from `start` on, without the GIL.\n\n"
             "The key has 16, 24 or 32 bytes; `counter` is that of the first 16 bytes. No other thread may touch\n"
             "these bytes meanwhile.\n\n"
             "Raises ValueError for bytes outside of the data and another key, and NotImplementedError where\n"
             "has_aes() is false.");

static PyObject *decrypt(PyObject *module, PyObject *arguments)
{
    PyObject *data, *view;
    Py_ssize_t start, size, length, key_size;
    const char *key;
    unsigned long long counter;
    char *at;
    (void)module;

    if (!PyArg_ParseTuple(arguments, "O!nny#K", &PyByteArray_Type, &data, &start, &size, &key, &key_size, &counter))
        return NULL;
    if (!aes_ctr_supported()) {
        PyErr_SetString(PyExc_NotImplementedError, "this processor has no instructions for AES");
        return NULL;
    }
    if (key_size != 16 && key_size != 24 && key_size != 32) {
        PyErr_SetString(PyExc_ValueError, "the key has not 16, 24 or 32 bytes");
        return NULL;
    }
    view = PyMemoryView_FromObject(data); /* while there is a view, nobody can resize the bytearray */
    if (view == NULL)
        return NULL;
    length = PyByteArray_Size(data);
    if (start < 0 || size < 0 || start > length || size > length - start) {
        Py_DECREF(view);
        PyErr_SetString(PyExc_ValueError, "these bytes lie outside of the data");
        return NULL;
    }
    at = PyByteArray_AsString(data) + start;
    Py_BEGIN_ALLOW_THREADS
    aes_ctr((const uint8_t *)key, (size_t)key_size, counter, (uint8_t *)at, (size_t)size);
    Py_END_ALLOW_THREADS
    Py_DECREF(view);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(has_aes_doc, "has_aes()\n--\n\nWhether this processor has instructions for AES, which decrypt() needs.");

static PyObject *has_aes(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyBool_FromLong(aes_ctr_supported());
}

PyDoc_STRVAR(kernels_doc,
             "kernels()\n--\n\nThe names of derive()'s kernels that this processor can run, fastest first.");

static PyObject *kernels(PyObject *module, PyObject *unused)
{
    PyObject *names = PyList_New(0);
    (void)module, (void)unused;
    for (const struct pbkdf2_kernel *kernel = pbkdf2_kernels; names && kernel->name; kernel++) {
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
    {"derive", derive, METH_VARARGS, derive_doc},
    {"decrypt", decrypt, METH_VARARGS, decrypt_doc},
    {"has_aes", has_aes, METH_NOARGS, has_aes_doc},
    {"kernels", kernels, METH_NOARGS, kernels_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_winzip_aes",
    "The keys of WinZip's AES encryption, and its cipher.",
    0,
    methods,
    slots,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__winzip_aes(void)
{
    return PyModuleDef_Init(&definition);
}
